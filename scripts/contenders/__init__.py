"""The loaders that ``bench_loaders.py`` compares, one module each, and the job that all of them do.

A contender module has:

    PACKAGES          the distributions whose versions belong beside its figures
    NOTE              one sentence: what its data set holds and how it decodes
    prepare(job)      write ``job.data`` (a directory that exists and is empty) from ``job.images``; what it
                      writes into the file REMARK there is added to the note
    batches(job)      an iterable; each iteration over it is one epoch, in a new random order, of pairs
                      (uint8 tensor (n, 3, size, size), int64 tensor (n,)) with 1 ≤ n ≤ ``job.batch``

An epoch is every image exactly once. A module imports its library at its top, so that a missing one shows as an
ImportError before anything is prepared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "picstore",
    "picstore-q90",
    "ffcv",
    "ffcv-q90",
    "torchvision",
    "litdata",
    "dali",
    "streaming",
    "webdataset",
    "imagefolder",
)

REMARK = "remark.txt"


@dataclass(frozen=True)
class Job:
    """The standard job: RandomResizedCrop(size) and a horizontal flip of every image of a folder, in batches."""

    images: Path  # one sub-folder a class, JPEG files in them
    data: Path  # the contender's own data set
    per_class: tuple[int, ...]  # images of each class, in the order of the sorted folder names
    batch: int = 128
    size: int = 224
    workers: int = 2
    seed: int = 0

    @property
    def count(self) -> int:
        """Images of an epoch."""
        return sum(self.per_class)


def samples(job: Job) -> list[tuple[Path, int]]:
    """Every image with its label, shuffled: formats that shuffle only locally are written in a random order."""
    folders = sorted(path for path in job.images.iterdir() if path.is_dir())
    found = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    random.Random(job.seed).shuffle(found)
    return found
