"""WebDataset: tar shards read in order, shuffled by shard and in a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import webdataset as wds

from benchmarks.peers import Contender, Job
from benchmarks.peers.image_files import JpegCrop

PACKAGES = ("webdataset", "torch", "torchvision")
SHARDS = 16  # a multiple of the workers, so that each gets as many


def write(job: Job) -> None:
    """Write the shards, in random order as its documentation asks."""
    samples = job.samples()
    with wds.ShardWriter(str(job.data / "%06d.tar"), maxcount=-(-len(samples) // SHARDS)) as shards:
        for key, (path, label) in enumerate(samples):
            shards.write({"__key__": f"{key:08d}", "jpg": path.read_bytes(), "cls": str(label).encode()})


def _batches(job: Job) -> Iterable[Any]:
    """Batches made in the workers; each worker's last one may be smaller."""
    shards = sorted(str(path) for path in job.data.glob("*.tar"))
    images = (
        wds.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=job.seed)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(JpegCrop(job.size), int)
        .batched(job.batch)
    )
    workers = {"num_workers": job.workers, "persistent_workers": True, "prefetch_factor": 2}
    return wds.WebLoader(images, batch_size=None, **workers)


CONTENDERS = {
    "webdataset": Contender(
        "tar shards of the source's bytes; decoded by torchvision, faster than the Pillow of its examples",
        write,
        _batches,
    )
}
