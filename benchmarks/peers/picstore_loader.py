"""picstore: converted, shuffled, and streamed by its own loader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

import picstore
from benchmarks.peers import JITTER, MEAN, REMARK, STD, Contender, Job

PACKAGES = ("picstore", "numba", "numpy", "torch", "simplejpeg")


def write(job: Job, *options: str) -> None:
    """``picstore convert`` with these options, then ``picstore shuffle``."""
    command, workers = [sys.executable, "-m", "picstore.cli"], ("--workers", str(job.workers))
    converted = job.data / "converted"
    subprocess.run([*command, "convert", job.images, converted, *workers, *options], check=True)
    subprocess.run([*command, "shuffle", converted, job.data / "shuffled", *workers], check=True)
    with (converted / "ledger.jsonl").open() as ledger:
        statuses = Counter(json.loads(line)["status"] for line in ledger)
    (job.data / REMARK).write_text(", ".join(f"{count:,} {status}" for status, count in statuses.most_common()))
    shutil.rmtree(converted)


def batches(job: Job) -> Iterable[Any]:
    """One loader; iterating it again is the next epoch."""
    return picstore.Loader(
        str(job.data / "shuffled"),
        batch_size=job.batch,
        transform=[picstore.RandomResizedCrop(job.size), picstore.RandomHorizontalFlip()],
        seed=job.seed,
        drop_last=False,
        threads=job.workers,
    )


def color_batches(job: Job) -> Iterable[Any]:
    """The job with color jitter, normalised, in float16."""
    return picstore.Loader(
        str(job.data / "shuffled"),
        batch_size=job.batch,
        transform=[
            picstore.RandomResizedCrop(job.size),
            picstore.RandomHorizontalFlip(),
            picstore.ColorJitter(*JITTER),
            picstore.Normalize(MEAN, STD),
        ],
        dtype=torch.float16,
        seed=job.seed,
        drop_last=False,
        threads=job.workers,
    )


CONTENDERS = {
    "picstore-color": Contender("as picstore, with color jitter, normalised, float16", write, color_batches),
    "picstore": Contender("own format; crops are cut out of the bitstream before decoding", write, batches),
    "picstore-q90": Contender(
        "as picstore, converted with --reencode --quality 90: other bytes and pixels",
        lambda job: write(job, "--reencode", "--quality", "90"),
        batches,
    ),
}
