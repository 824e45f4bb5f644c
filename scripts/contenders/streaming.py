"""MosaicML Streaming: MDS shards on the local disk."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from contenders import Job, samples
from contenders.decoding import JpegCrop

PACKAGES = ("mosaicml-streaming", "torch", "torchvision")
NOTE = "MDS shards of the source's bytes; decoded by torchvision, faster than the Pillow of its 'jpeg' column"


def prepare(job: Job) -> None:
    """Write the shards, 64 MiB each (its default), not compressed."""
    with MDSWriter(out=str(job.data), columns={"image": "bytes", "label": "int"}) as shards:
        for path, label in samples(job):
            shards.write({"image": path.read_bytes(), "label": label})


class _Images(StreamingDataset):
    def __init__(self, job: Job) -> None:
        # One canonical node: with the default of 64 it repeats images to fill up each of them.
        super().__init__(
            local=str(job.data),
            shuffle=True,
            shuffle_seed=job.seed,
            batch_size=job.batch,
            num_canonical_nodes=1,
        )
        self._crop = JpegCrop(job.size)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(at)
        return self._crop(sample["image"]), sample["label"]


def batches(job: Job) -> Iterable:
    """Its own data loader, with workers that live through all epochs."""
    clean_stale_shared_memory()
    return StreamingDataLoader(
        _Images(job),
        batch_size=job.batch,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=2,
    )
