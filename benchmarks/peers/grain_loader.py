"""Grain: a map data set of image files, shuffled as a whole, decoded by OpenCV or Pillow in worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
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
    def __init__(self, job: Job, kind: str) -> None:
        self._job, self._kind, self._epoch = job, kind, 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        job, self._epoch = self._job, self._epoch + 1
        images = grain.MapDataset.source(job.samples()).shuffle(seed=job.seed + self._epoch)
        images = images.random_map(_Crop(self._kind, job.size), seed=job.seed + self._epoch)
        batches = images.to_iter_dataset(grain.ReadOptions(num_threads=1)).batch(job.batch, drop_remainder=False)
        for pixels, labels in batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers)):
            yield torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64))


def _contender(kind: str) -> Contender:
    def batches(job: Job) -> Iterable[Any]:
        return _Epochs(job, kind)

    return Contender(f"the image files; {kind} decodes and resizes in worker processes", nothing, batches)


CONTENDERS = {"grain": _contender("opencv"), "grain-pillow": _contender("pillow")}
