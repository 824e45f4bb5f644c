"""LitData: chunks on the local disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from benchmarks.peers import Contender, Job
from benchmarks.peers.image_files import JpegCrop, shrink_jpeg

PACKAGES = ("litdata", "torch", "torchvision", "pillow")


def _read(sample: tuple[str, int]) -> dict[str, object]:
    return {"image": Path(sample[0]).read_bytes(), "label": sample[1]}


def _shrink(sample: tuple[str, int]) -> dict[str, object]:
    return {"image": shrink_jpeg(Path(sample[0])), "label": sample[1]}


def _write(job: Job, make: Callable[[tuple[str, int]], dict[str, object]]) -> None:
    """Write chunks of 64 MB, the size of its examples."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(job.data.with_name("litdata-cache"))
    inputs = [(str(path), label) for path, label in job.samples()]
    optimize(make, inputs, str(job.data), chunk_bytes="64MB", num_workers=job.workers, reorder_files=False)


class _Images(StreamingDataset):
    def __init__(self, job: Job) -> None:
        super().__init__(str(job.data), shuffle=True, seed=job.seed, drop_last=False)
        self._crop = JpegCrop(job.size)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return self._crop(sample["image"]), sample["label"]


def _batches(job: Job) -> Iterable[Any]:
    return StreamingDataLoader(
        _Images(job), batch_size=job.batch, num_workers=job.workers, persistent_workers=True, prefetch_factor=2
    )


CONTENDERS = {
    "litdata": Contender(
        "chunks of the source's bytes; decoded by torchvision, which its own image columns use too",
        lambda job: _write(job, _read),
        _batches,
    ),
    "litdata-shorter": Contender(
        "Pillow decodes, resizes (Lanczos) and encodes, in the workers of optimize", lambda job: _write(job, _shrink)
    ),
}
