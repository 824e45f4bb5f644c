"""WebDataset: tar shards read in order, shuffled by shard and in a buffer."""

from __future__ import annotations

from collections.abc import Iterable

import webdataset as wds

from contenders import Job, samples
from contenders.decoding import JpegCrop

PACKAGES = ("webdataset", "torch", "torchvision")
NOTE = "tar shards of the source's bytes; decoded by torchvision, faster than the Pillow of its examples"

SHARDS = 16  # a multiple of the workers, so that each gets as many


def prepare(job: Job) -> None:
    """Write the shards, in random order as its documentation asks."""
    found = samples(job)
    per_shard = -(-len(found) // SHARDS)
    with wds.ShardWriter(str(job.data / "%06d.tar"), maxcount=per_shard) as shards:
        for key, (path, label) in enumerate(found):
            shards.write({"__key__": f"{key:08d}", "jpg": path.read_bytes(), "cls": str(label).encode()})


def batches(job: Job) -> Iterable:
    """Batches made in the workers; each worker's last one may be smaller."""
    shards = sorted(str(path) for path in job.data.glob("*.tar"))
    images = (
        wds.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=job.seed)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(JpegCrop(job.size), int)
        .batched(job.batch)
    )
    return wds.WebLoader(
        images,
        batch_size=None,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=2,
    )
