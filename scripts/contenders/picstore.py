"""picstore: converted with its defaults, shuffled, and streamed by its own loader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import picstore
from contenders import REMARK, Job

PACKAGES = ("picstore", "numba", "numpy", "torch", "simplejpeg")
NOTE = "own format, written with its defaults; crops are cut out of the bitstream before decoding"


def convert(job: Job, *options: str) -> None:
    """``picstore convert`` with these options, then ``picstore shuffle``."""
    cli = Path(sys.executable).with_name("picstore")
    converted = job.data / "converted"
    workers = ("--workers", str(job.workers))
    subprocess.run([cli, "convert", job.images, converted, *workers, *options], check=True)
    subprocess.run([cli, "shuffle", converted, job.data / "shuffled", *workers], check=True)
    with (converted / "ledger.jsonl").open() as ledger:
        statuses = Counter(json.loads(line)["status"] for line in ledger)
    remark = ", ".join(f"{number:,} {status}" for status, number in statuses.most_common())
    (job.data / REMARK).write_text(remark)
    shutil.rmtree(converted)


def prepare(job: Job) -> None:
    """Convert with the defaults, which keep the coefficients of every JPEG that allows it."""
    convert(job)


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
