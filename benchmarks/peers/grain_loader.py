"""Grain: a map data set of image files, shuffled as a whole, decoded by OpenCV or Pillow in worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import grain
import numpy as np
import torch

from benchmarks.peers import Contender, Job, nothing
from benchmarks.peers.pixel_crops import CROPS

PACKAGES = ("grain", "opencv-python-headless", "pillow")


class _Crop:
    """Read and crop one image; a sample is its path and label."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind, self._size = kind, size

    def __call__(self, sample: tuple[Any, int], rng: np.random.Generator) -> tuple[Any, int]:
        path, label = sample
        draw = random.Random(int(rng.integers(1 << 62)))
        return CROPS[self._kind](path.read_bytes(), self._size, draw), label


class _Epochs:
    """Epochs of one iterator: its worker processes start once, and batches are made within an epoch."""

    def __init__(self, job: Job, kind: str) -> None:
        self._batches = -(-job.count // job.batch)
        images = grain.MapDataset.source(job.samples()).shuffle(seed=job.seed)
        crops = images.random_map(_Crop(kind, job.size), seed=job.seed).batch(job.batch, drop_remainder=False)
        epochs = crops.repeat().to_iter_dataset(grain.ReadOptions(num_threads=1))
        self._iterator = iter(epochs.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers)))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pixels, labels in islice(self._iterator, self._batches):
            yield torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def _contender(kind: str) -> Contender:
    def batches(job: Job) -> Iterable[Any]:
        return _Epochs(job, kind)

    return Contender(f"the image files; {kind} decodes and resizes in worker processes", nothing, batches)


CONTENDERS = {"grain": _contender("opencv"), "grain-pillow": _contender("pillow")}
