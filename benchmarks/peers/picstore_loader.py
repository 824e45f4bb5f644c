"""picstore: converted, shuffled, and streamed by its own loader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import picstore
from benchmarks.peers import JITTER, MEAN, REMARK, STD, Contender, Job

PACKAGES = ("picstore", "numba", "numpy", "torch", "simplejpeg")


def write(job: Job, *options: str) -> None:
    """``picstore convert`` with these options, then ``picstore shuffle``."""
    command, workers = [sys.executable, "-m", "picstore"], ("--workers", str(job.workers))
    converted = job.data / "converted"
    subprocess.run([*command, "convert", job.images, converted, *workers, *options], check=True)
    subprocess.run([*command, "shuffle", converted, job.data / "shuffled", *workers], check=True)
    with (converted / "ledger.jsonl").open() as ledger:
        statuses = Counter(json.loads(line)["status"] for line in ledger)
    (job.data / REMARK).write_text(", ".join(f"{count:,} {status}" for status, count in statuses.most_common()))
    shutil.rmtree(converted)


def write_index(job: Job, source: Path) -> None:
    """``picstore index``."""
    command = [sys.executable, "-m", "picstore", "index", source, job.data / "index"]
    subprocess.run([*command, "--workers", str(job.workers)], check=True)


def write_tars(job: Job) -> None:
    """The tars of WebDataset's contender, and their index."""
    from benchmarks.peers import webdataset_loader

    tars = job.data / "tars"
    tars.mkdir()
    webdataset_loader.write(replace(job, data=tars))
    # The folder is renamed when it is whole, and an index names the folder of its images.
    tars.rename(job.data.with_name("tars"))
    write_index(job, job.data.with_name("tars"))


def batches(job: Job, name: str = "shuffled") -> Iterable[Any]:
    """One loader; iterating it again is the next epoch."""
    return picstore.Loader(
        str(job.data / name),
        batch_size=job.batch,
        transform=[picstore.RandomResizedCrop(job.size), picstore.RandomHorizontalFlip()],
        seed=job.seed,
        drop_last=False,
        threads=job.workers,
    )


def color_batches(job: Job) -> Iterable[Any]:
    """The job with color jitter, normalized, in float16."""
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
    "picstore-color": Contender("as picstore, with color jitter, normalized, float16", write, color_batches),
    "picstore": Contender("own format; crops are cut out of the bitstream before decoding", write, batches),
    "picstore-index": Contender(
        "the image files, indexed; decoded whole, as they have no restart markers",
        lambda job: write_index(job, job.images),
        lambda job: batches(job, "index"),
    ),
    "picstore-index-tars": Contender("the same in tars", write_tars, lambda job: batches(job, "index")),
    "picstore-q90": Contender(
        "as picstore, converted with --reencode --quality 90: other bytes and pixels",
        lambda job: write(job, "--reencode", "--quality", "90"),
        batches,
    ),
}
