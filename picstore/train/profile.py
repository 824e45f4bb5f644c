"""Profile of a loader on one dataset and machine, stage by stage, for ``picstore bench``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from picstore.errors import counted
from picstore.results import Result
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container
from picstore.train.batching.gather import BatchRecords, EpochContainer, gather_records
from picstore.train.batching.parameters import TransformParams, make_params
from picstore.train.batching.spec import OutputSpec
from picstore.train.batching.views_reach import align_reach, joint_factors
from picstore.train.buffers import BufferPools
from picstore.train.cpu.decode_crop import decode_slot
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.cpu.render import render
from picstore.train.cpu.run_color import run_color
from picstore.train.loader import Loader
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.rank_shares import default_lanes
from picstore.train.order.requests import TrainingSource
from picstore.train.pipeline.stats import Stats
from picstore.train.transforms.opcodes import OutputDtype
from picstore.train.transforms.transform_plan import UserTransform, plan_transforms

FUSED_STAGES = ("decode", "augment")
STAGES = ("read", "plan", *FUSED_STAGES)
_WARM_UP = 8  # Batches before the clock starts, in which kernels load and memory is allocated.


@dataclass(slots=True)
class Clock:
    """Seconds that each stage takes: processor time of the thread; for ``read``, which waits for a disk, wall time."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*STAGES, "fill"), 0.0))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        now = time.perf_counter if name == "read" else time.thread_time
        start = now()
        try:
            yield
        finally:
            self.seconds[name] += now() - start


@dataclass(frozen=True, slots=True)
class Report(Result):
    """Measured speed of a loader, and of each of its stages.

    Attributes:
        microseconds: time that each stage takes for an image in one thread, by the stage's name.
        images: number of images measured.
        bytes: size of the containers read for the images, in bytes.
        rate: speed of the loader in images/s.
        seconds: time that the loader took for the images.
    """

    microseconds: dict[str, float]
    images: int
    bytes: int
    threads: int
    rate: float
    stats: Stats
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}

    @property
    def read_rate(self) -> float:
        """Bytes/s that one reader thread reads."""
        return self.bytes / (self.microseconds["read"] * self.images * 1e-6)

    @property
    def verdict(self) -> str:
        """Sentence that tells what limits the loader's speed: a stage, the disk or Python."""
        work = {name: self.microseconds[name] for name in STAGES if name != "read"}
        slowest = max(work, key=lambda name: work[name])
        fraction = work[slowest] / sum(work.values())
        if (waited := self.stats.waited_on_disk / self.seconds) > 0.5:
            return (
                f"Reading bounds this run: the loader waited on it for {waited:.0%} of the time; a faster disk or more "
                "memory would help, more threads would not."
            )
        if (busy := self.stats.working / (self.threads * self.seconds)) < 0.5:
            return (
                f"Python bounds this run: the {counted(self.threads, 'thread')} worked for {busy:.0%} of the time, and "
                "one process makes no more batches; more processes would help, more threads would not."
            )
        return (
            f"The {counted(self.threads, 'thread', 'bound')} this run: {slowest} takes {fraction:.0%} of the "
            f"{sum(work.values()):,.0f} microseconds of work for an image; more cores would help, a faster disk "
            "would not."
        )


def measure(
    dataset: str | os.PathLike[str] | Dataset,
    *,
    transform: Sequence[UserTransform],
    batch_size: int,
    images: int,
    threads: int,
    **options: Any,
) -> Report:
    """Measure each stage of a loader by itself in one thread, then the whole loader.

    Args:
        transform: picstore's transforms, without callables.
        images: number of images to measure, in as many epochs as needed.
    """
    loader = Loader(dataset, batch_size=batch_size, transform=transform, threads=threads, **options)
    batches = max(1, images // batch_size)
    clock, size = _time_stages(loader, transform, batch_size=batch_size, batches=batches)
    iterator = chain.from_iterable(repeat(loader))
    for _ in islice(iterator, _WARM_UP):
        pass
    before, start = loader.stats, time.perf_counter()
    total = sum(len(batch.labels) for batch in islice(iterator, batches))
    seconds = time.perf_counter() - start
    stats = loader.stats - before
    del iterator
    loader.close()
    return Report(
        microseconds={name: seconds / total * 1e6 for name, seconds in clock.seconds.items()},
        images=total,
        bytes=size,
        threads=threads,
        rate=total / seconds,
        stats=stats,
        seconds=seconds,
    )


def _time_stages(
    loader: Loader, transform: Sequence[UserTransform], *, batch_size: int, batches: int
) -> tuple[Clock, int]:
    """Time the stages of the same batches one after another; return the clock, and the size of the containers read."""
    plan, _ = plan_transforms(transform, reducing_gap=loader.output.reducing_gap)
    sources = (TrainingSource(loader.dataset, 0, plan=plan),)
    shard = RankShard(records=len(loader.dataset), lanes=default_lanes(1), batch=batch_size)
    output, buffers = OutputSpec.from_plans([plan]), BufferPools()
    containers: dict[EpochContainer, Container] = {}
    clock, size = Clock(), 0
    requests = DatasetOrder(shard, seed=0).requests(sources, epoch=0)
    for number, request in enumerate(islice(requests, _WARM_UP + batches)):
        if number == _WARM_UP:
            clock, size = Clock(), 0
        keys = {(0, request[0].epoch, int(k)) for k in np.unique(request[0].samples.container)}
        containers = {key: container for key, container in containers.items() if key in keys}
        for key in keys - set(containers):
            with clock.stage("read"):
                containers[key] = loader.dataset.containers.read(key[2], allocate=buffers.containers.borrow)
            size += containers[key].size
        with clock.stage("plan"):
            records = gather_records(request, containers, sources=sources)
            params = make_params(request, records.ids, records.image_sizes, sources=sources, extras=records.extras)
            filler = ImageFiller(records, params, output, buffers.batches)
        with clock.stage("fill"):
            filler.fill(range(len(records)))
        _time_stages_of_fill(records, params[0], output, clock)
    # The fused kernel decodes and resamples in one call. Divide its time in proportion to the times of separate stages.
    fill, apart = clock.seconds.pop("fill"), sum(clock.seconds[stage] for stage in FUSED_STAGES)
    for stage in FUSED_STAGES:
        clock.seconds[stage] *= fill / apart
    return clock, size


def _time_stages_of_fill(records: BatchRecords, params: TransformParams, output: OutputSpec, clock: Clock) -> None:
    """Time decoding and augmenting each image in separate calls, rather than in the one kernel that fuses both."""
    slots, geometry, dtype = range(len(records)), params.geometry, OutputDtype.from_dtype(output.dtype)
    factors = np.where(records.foreign, 1, joint_factors([geometry], len(records), output.reducing_gap))
    reach = align_reach(geometry.reach, factors)
    for slot, factor in zip(slots, factors.tolist(), strict=True):
        with clock.stage("decode"):
            pixels, origin = decode_slot(records, slot, reach[slot], factor=factor)
        width, height = geometry.size[slot].tolist()
        levels = np.empty((3, height, width), dtype=np.uint8)
        out = levels if output.dtype == "uint8" else np.empty(levels.shape, dtype=output.numpy_dtype)
        with clock.stage("augment"):
            render(pixels, geometry, slot, origin=origin, factor=factor, out=levels)
            run_color(params.program, slot, levels, out, dtype)
