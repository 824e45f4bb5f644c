"""Ray Data: paths shuffled as a whole, decoded by OpenCV or Pillow in its tasks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.peers import Contender, Job, nothing
from benchmarks.peers.pixel_crops import CROPS

PACKAGES = ("ray", "opencv-python-headless", "pillow")


class _Crop:
    """Read and crop a batch of images."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind, self._size = kind, size

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        draw = random.Random()  # seeded by the system, as tasks come in no order
        pixels = [CROPS[self._kind](Path(path).read_bytes(), self._size, draw) for path in batch["path"]]
        return {"image": np.stack(pixels), "label": batch["label"]}


class _Epochs:
    def __init__(self, job: Job, kind: str) -> None:
        ray.init(num_cpus=job.workers, include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        self._samples = [{"path": str(path), "label": label} for path, label in job.samples()]
        self._job, self._kind, self._epoch = job, kind, 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        job, self._epoch = self._job, self._epoch + 1
        order = list(self._samples)
        random.Random(job.seed + self._epoch).shuffle(order)  # faster than random_shuffle, as all paths fit
        crops = ray.data.from_items(order).map_batches(_Crop(self._kind, job.size), batch_size=job.batch // 2)
        for batch in crops.iter_torch_batches(batch_size=job.batch, prefetch_batches=2):
            yield batch["image"], batch["label"]


def _contender(kind: str) -> Contender:
    def batches(job: Job) -> Iterable[Any]:
        return _Epochs(job, kind)

    return Contender(f"the image files; {kind} decodes and resizes in Ray's tasks", nothing, batches)


CONTENDERS = {"ray-data": _contender("opencv"), "ray-data-pillow": _contender("pillow")}
