"""LitData: chunks on the local disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from litdata import StreamingDataLoader, StreamingDataset, optimize

from contenders import Job, samples
from contenders.decoding import JpegCrop

PACKAGES = ("litdata", "torch", "torchvision")
NOTE = "chunks of the source's bytes; decoded by torchvision, which is also what its own image columns use"


def _read(sample: tuple[str, int]) -> dict[str, object]:
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


def prepare(job: Job) -> None:
    """Write chunks of 64 MB, the size of its examples."""
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(job.data.with_name("litdata-cache"))
    inputs = [(str(path), label) for path, label in samples(job)]
    optimize(_read, inputs, str(job.data), chunk_bytes="64MB", num_workers=job.workers, reorder_files=False)


class _Images(StreamingDataset):
    def __init__(self, job: Job) -> None:
        super().__init__(str(job.data), shuffle=True, seed=job.seed, drop_last=False)
        self._crop = JpegCrop(job.size)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return self._crop(sample["image"]), sample["label"]


def batches(job: Job) -> Iterable:
    """Its own data loader, with workers that live through all epochs."""
    return StreamingDataLoader(
        _Images(job),
        batch_size=job.batch,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=2,
    )
