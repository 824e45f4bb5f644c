"""picstore: converted losslessly, shuffled, and streamed by its own loader."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import picstore
from contenders import Job

PACKAGES = ("picstore", "numba", "numpy", "torch", "simplejpeg")
NOTE = "own format, the source's coefficients bit for bit with restart markers inserted; crops cut before decoding"


def prepare(job: Job) -> None:
    """``picstore convert`` and ``picstore shuffle``, both with their defaults."""
    cli = Path(sys.executable).with_name("picstore")
    converted = job.data / "converted"
    workers = ("--workers", str(job.workers))
    subprocess.run([cli, "convert", job.images, converted, *workers], check=True)
    subprocess.run([cli, "shuffle", converted, job.data / "shuffled", *workers], check=True)
    shutil.rmtree(converted)


def batches(job: Job) -> Iterable:
    """One loader; iterating it again is the next epoch."""
    return picstore.Loader(
        str(job.data / "shuffled"),
        batch_size=job.batch,
        transform=[picstore.RandomResizedCrop(job.size), picstore.RandomHorizontalFlip()],
        seed=job.seed,
        drop_last=False,
        threads=job.workers,
    )
