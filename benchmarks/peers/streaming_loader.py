"""MosaicML Streaming: MDS shards on the local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory, merge_index

from benchmarks.peers import Contender, Job
from benchmarks.peers.image_files import JpegCrop, shrink_jpeg

PACKAGES = ("mosaicml-streaming", "torch", "torchvision", "pillow")


def _write(folder: Path, samples: Sequence[tuple[Path, int]], read: Callable[[Path], bytes]) -> None:
    """Write shards of 64 MiB (its default), not compressed."""
    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as shards:
        for path, label in samples:
            shards.write({"image": read(path), "label": label})


def _write_in_processes(job: Job) -> None:
    """Write with one writer a process, as its documentation says, and one index of all."""
    samples, context = job.samples(), get_context("fork")
    folders = [job.data / f"{number}" for number in range(job.workers)]
    writers = [
        context.Process(target=_write, args=(folder, samples[number :: job.workers], shrink_jpeg))
        for number, folder in enumerate(folders)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        if writer.exitcode:
            raise RuntimeError(f"a writer ended with {writer.exitcode}")
    merge_index([str(folder / "index.json") for folder in folders], str(job.data))


class _Images(StreamingDataset):
    def __init__(self, job: Job) -> None:
        # One canonical node: with the default of 64 it repeats images to fill up each of them.
        options = {"shuffle_seed": job.seed, "batch_size": job.batch, "num_canonical_nodes": 1}
        super().__init__(local=str(job.data), shuffle=True, **options)
        self._crop = JpegCrop(job.size)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(at)
        return self._crop(sample["image"]), sample["label"]


def _batches(job: Job) -> Iterable[Any]:
    clean_stale_shared_memory()
    return StreamingDataLoader(
        _Images(job), batch_size=job.batch, num_workers=job.workers, persistent_workers=True, prefetch_factor=2
    )


CONTENDERS = {
    "streaming": Contender(
        "MDS shards of the source's bytes; decoded by torchvision, faster than the Pillow of its 'jpeg' column",
        lambda job: _write(job.data, job.samples(), Path.read_bytes),
        _batches,
    ),
    "streaming-shorter": Contender(
        "Pillow decodes, resizes (Lanczos) and encodes; a writer in each process, and merge_index", _write_in_processes
    ),
    "streaming-shorter-one": Contender(
        "Pillow decodes, resizes (Lanczos) and encodes, in the writer's process",
        lambda job: _write(job.data, job.samples(), shrink_jpeg),
    ),
}
