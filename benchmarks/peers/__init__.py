"""Contenders of the standard job and of conversion: picstore and its peers, one module a library.

A module imports its library at its top, so that a missing one shows before anything is prepared, and has ``PACKAGES``,
the distributions whose versions belong beside its figures, and ``CONTENDERS``, by name. Only the standard library and
the contender's own are imported here: peers run in an environment of their own, which ``benchmarks/setup-peers`` makes.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.child import ROOT, ChildProcess
from benchmarks.machine import versions

PYTHON = ROOT / ".venv-peers" / "bin" / "python"
REMARK = "remark.txt"  # in a contender's data set: a sentence that belongs beside its figures
MODULES = {
    "picstore": "picstore_loader",
    "picstore-q90": "picstore_loader",
    "picstore-color": "picstore_loader",
    "picstore-index": "picstore_loader",
    "picstore-index-tars": "picstore_loader",
    "ffcv": "ffcv_loader",
    "ffcv-q90": "ffcv_loader",
    "ffcv-shorter": "ffcv_loader",
    "ffcv-longer": "ffcv_loader",
    "torchvision": "image_files",
    "torchvision-color": "image_files",
    "imagefolder": "image_files",
    "litdata": "litdata_loader",
    "litdata-shorter": "litdata_loader",
    "dali": "dali_loader",
    "streaming": "streaming_loader",
    "streaming-shorter": "streaming_loader",
    "streaming-shorter-one": "streaming_loader",
    "webdataset": "webdataset_loader",
    "spdl": "spdl_loader",
    "grain": "grain_loader",
    "grain-pillow": "grain_loader",
    "ray-data": "ray_loader",
    "ray-data-pillow": "ray_loader",
}

# Of the job with colors: torchvision's ColorJitter, and ImageNet's means and deviations.
JITTER, MEAN, STD = (0.4, 0.4, 0.4, 0.1), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Job:
        """A job that came as JSON."""
        paths = {name: Path(fields[name]) for name in ("images", "data")}
        return cls(**{**fields, **paths, "per_class": tuple(fields["per_class"])})

    def samples(self) -> list[tuple[Path, int]]:
        """Every image with its label, shuffled: formats that shuffle only locally are written in a random order."""
        folders = sorted(path for path in self.images.iterdir() if path.is_dir())
        found = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        random.Random(self.seed).shuffle(found)
        return found


@dataclass(frozen=True)
class Contender:
    """A way to do the job.

    Attributes:
        note: what its data set holds and how it decodes.
        prepare: writes ``job.data``, an empty directory, from ``job.images``.
        batches: an iterable whose iterations are epochs in new random orders, of pairs (uint8 tensor
            (n, 3, size, size), int64 tensor (n,)) with 1 ≤ n ≤ ``job.batch``; None where it only writes.
    """

    note: str
    prepare: Callable[[Job], None]
    batches: Callable[[Job], Iterable[Any]] | None = None


def nothing(job: Job) -> None:
    """Prepare nothing: the contender reads the image files."""


def start(function: str, name: str, job: Job, *arguments: Any, **options: Any) -> ChildProcess:
    """Run a function of this module for a contender, in the environment that has it."""
    own = name.startswith("picstore") or not PYTHON.exists()
    python = sys.executable if own else PYTHON
    environment = {"PYTHONWARNINGS": "ignore"}
    target = f"benchmarks.peers:{function}"
    return ChildProcess(target, name, asdict(job), *arguments, python=python, environment=environment, **options)


def prepare(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Write a contender's data set."""
    job = Job.from_json(fields)
    module, contender = _load(name, job)
    began = time.perf_counter()
    contender.prepare(job)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "versions": versions(*module.PACKAGES), "note": contender.note}


def epochs(name: str, fields: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """Consume and check epochs; of the first, which warms up, also the mean of each channel."""
    job = Job.from_json(fields)
    _, contender = _load(name, job)
    assert contender.batches is not None, name  # noqa: S101
    batches = contender.batches(job)
    for number in range(count):
        yield _epoch(batches, job, means=number == 0)


def _load(name: str, job: Job) -> tuple[Any, Contender]:
    # Helper threads beyond the workers would otherwise use cores that other contenders leave idle.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.workers])
    module = importlib.import_module(f"benchmarks.peers.{MODULES[name]}")
    return module, module.CONTENDERS[name]


def _epoch(batches: Iterable[Any], job: Job, *, means: bool) -> dict[str, Any]:
    import torch

    seen = torch.zeros(len(job.per_class), dtype=torch.int64)
    sums = torch.zeros(3, dtype=torch.float64)
    began = time.perf_counter()
    for images, labels in batches:
        _check_batch(images, labels, job)
        seen += torch.bincount(labels, minlength=len(seen))
        if means:
            # Normalized ones in levels of their deviation: a swap of channels shows as much as it does in uint8.
            sums += images.sum(dim=(0, 2, 3), dtype=torch.float64) * (1 if images.dtype == torch.uint8 else 58)
    seconds = time.perf_counter() - began
    if tuple(seen.tolist()) != job.per_class:
        raise ValueError(f"an epoch had {int(seen.sum())} images, not every one of {job.count} once")
    return {"seconds": seconds, "means": (sums / (job.count * job.size**2)).tolist()}


def _check_batch(images: Any, labels: Any, job: Job) -> None:
    n = len(images)
    if not 1 <= n <= job.batch or tuple(images.shape) != (n, 3, job.size, job.size):
        raise ValueError(f"images of shape {tuple(images.shape)}")
    if tuple(labels.shape) != (n,):
        raise ValueError(f"labels of shape {tuple(labels.shape)} for {n} images")
    if str(images.dtype) not in ("torch.uint8", "torch.float16") or str(labels.dtype) != "torch.int64":
        raise TypeError(f"images of {images.dtype} and labels of {labels.dtype}, not uint8 or float16, and int64")
