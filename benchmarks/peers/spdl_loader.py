"""SPDL: a pipeline of threads; FFmpeg decodes, crops and resizes, as in its ImageNet example."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.peers import Contender, Job, nothing
from benchmarks.peers.pixel_crops import random_box

PACKAGES = ("spdl", "spdl-io", "torch")
_BATCHES_AHEAD = 2


class _Decoder:
    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, sample: tuple[Path, int]) -> tuple[Any, int]:
        path, label = sample
        packets = spdl.io.demux_image(path.read_bytes())
        left, top, width, height = random_box(packets.width, packets.height, random)  # type: ignore[arg-type]
        steps = [f"crop={width}:{height}:{left}:{top}:exact=1", f"scale={self._size}:{self._size}:flags=bilinear"]
        steps += ["hflip"] if random.random() < 0.5 else []
        return spdl.io.decode_packets(packets, filter_desc=",".join([*steps, "format=rgb24"])), label


def _stack(samples: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    frames, labels = zip(*samples, strict=True)
    images = spdl.io.to_torch(spdl.io.convert_frames(list(frames)))
    return images.permute(0, 3, 1, 2), torch.tensor(labels)


class _Epochs:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        job, samples = self._job, self._job.samples()
        random.shuffle(samples)
        builder = PipelineBuilder().add_source(samples).pipe(_Decoder(job.size), concurrency=job.workers)
        builder = builder.aggregate(job.batch).pipe(_stack).add_sink(_BATCHES_AHEAD)
        with (pipeline := builder.build(num_threads=job.workers + 1)).auto_stop():
            yield from pipeline.get_iterator()


def _batches(job: Job) -> Iterable[Any]:
    return _Epochs(job)


NOTE = "the image files; FFmpeg decodes, crops and scales in SPDL's threads"
CONTENDERS = {"spdl": Contender(NOTE, nothing, _batches)}
