"""How fast each stage of a loader is on one data set and machine: ``picstore bench``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from picstore.storage.format.container import Container
from picstore.train.batching.gather import gather_records
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import Memory
from picstore.train.cpu.color import run_color
from picstore.train.cpu.cut import cut_streams
from picstore.train.cpu.decode import decode_rgb
from picstore.train.cpu.fill_images import decode_factors
from picstore.train.cpu.render import render
from picstore.train.loader import Loader
from picstore.train.order.requests import Source, make_requests
from picstore.train.order.sharding import RankShard, default_lanes
from picstore.train.pipeline.stats import Stats
from picstore.train.transforms.compose import UserTransform, plan_transforms
from picstore.train.transforms.opcodes import OutputDtype

STAGES = ("read", "plan", "cut", "decode", "augment")
_WARM = 8  # batches before the clock starts: kernels are loaded, pages are fresh, each lane reads a container


@dataclass(slots=True)
class Clock:
    """Seconds of this thread by stage; ``read`` is counted as it passes on the wall, since a disk is waited for."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count a block."""
        now = time.perf_counter if name == "read" else time.thread_time
        start = now()
        try:
            yield
        finally:
            self.seconds[name] += now() - start


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured.

    Attributes:
        microseconds: of one thread for an image, by stage.
        images, bytes: that the stages were measured on: images, and bytes of containers.
        threads: of the loader.
        rate: images/s of the loader, beginning to end.
        stats: of the loader, for these images.
        seconds: that the loader ran.
    """

    microseconds: dict[str, float]
    images: int
    bytes: int
    threads: int
    rate: float
    stats: Stats
    seconds: float

    @property
    def read_rate(self) -> float:
        """Bytes/s of one reader."""
        return self.bytes / (self.microseconds["read"] * self.images * 1e-6)

    @property
    def verdict(self) -> str:
        """Where the time goes, in one sentence."""
        work = {name: self.microseconds[name] for name in STAGES if name != "read"}
        slowest = max(work, key=lambda name: work[name])
        share = work[slowest] / sum(work.values())
        if self.stats.waited_on_disk > 0.5 * self.seconds:
            waited = self.stats.waited_on_disk / self.seconds
            return (
                f"Reading bounds this run: the loader waited on it for {waited:.0%} of the time; a faster disk or more "
                "memory would help, more threads would not."
            )
        return (
            f"The {self.threads} threads bound this run: {slowest} takes {share:.0%} of the {sum(work.values()):,.0f} "
            "microseconds of work for an image; more cores would help, a faster disk would not."
        )


def measure(
    path: str | os.PathLike[str],
    *,
    transform: Sequence[UserTransform],
    batch_size: int,
    images: int,
    threads: int,
    **options: Any,
) -> Report:
    """Measure the stages one after the other in one thread, and then the loader.

    Args:
        transform: of the loader; only picstore's own.
        images: how many to take, of as many epochs as that needs.
        **options: of the loader: ``isolate``, ``cache`` and ``cache_limit``.
    """
    loader = Loader(path, batch_size=batch_size, transform=transform, threads=threads, **options)
    batches = max(1, images // batch_size)
    clock, size = _time_stages(loader, transform, batch_size=batch_size, batches=batches)
    iterator = chain.from_iterable(repeat(loader))
    for _ in islice(iterator, _WARM):
        pass
    before, start = loader.stats, time.perf_counter()
    total = sum(len(batch) for batch in islice(iterator, batches))
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
    """The stages of the same batches one after the other, and the bytes of the containers read."""
    recipe, _ = plan_transforms(transform)
    sources = (Source(loader.dataset, 0, recipe=recipe),)
    share = RankShard(records=len(loader.dataset), lanes=default_lanes(1), batch_size=batch_size)
    form = OutputSpec.of([recipe])
    finish = OutputDtype.from_dtype(form.dtype)
    memory = Memory()
    loaded: dict[tuple[int, int], Container] = {}
    clock, size = Clock(), 0
    requests = make_requests(sources, share=share, seed=0, epoch=0)
    for number, request in enumerate(islice(requests, _WARM + batches)):
        if number == _WARM:
            clock, size = Clock(), 0
        wanted = {(0, int(k)) for k in np.unique(request[0].samples.container)}
        loaded = {key: container for key, container in loaded.items() if key in wanted}
        for key in wanted - set(loaded):
            with clock.stage("read"):
                loaded[key] = loader.dataset.container(key[1], allocate=memory.containers.take)
            size += loaded[key].size
        with clock.stage("plan"):
            draft = gather_records(request, dict(loaded), sources=sources)
            look = make_params(draft, request, sources=sources)
            factors = decode_factors(look.geometry).tolist()
            reach = look.geometry.reach
        with clock.stage("cut"):
            streams = cut_streams(draft.jpegs, draft.layouts, draft.segments, reach)
        for slot, stream in enumerate(streams):
            with clock.stage("decode"):
                pixels = decode_rgb(stream.jpeg, width=stream.width, height=stream.height, factor=factors[slot])
            with clock.stage("augment"):
                width, height = look.geometry.size[slot].tolist()
                plain = np.empty((3, height, width), dtype=np.uint8)
                origin = (stream.left, stream.top)
                render(pixels, look.geometry, slot, origin=origin, factor=factors[slot], out=plain)
                out = plain if form.dtype == "uint8" else np.empty(plain.shape, dtype=form.item)
                run_color(look.program, slot, plain, out, finish)
    return clock, size
