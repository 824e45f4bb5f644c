"""The standard job end to end, from the page cache: images/s, and the time of each stage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch

import picstore
from gpu.bench import Bench
from gpu.case import Case, Row
from gpu.machine import Engines
from picstore.train.pipeline import device

THREADS = (1, 2, 4, 8, 16)
DEVICE_THREADS = (1, 2, 4)
WARM = 8  # batches: kernels are compiled, memory is taken, each lane has read a container
TABLE = "The standard job"


def cases(bench: Bench) -> list[Case]:
    """Threads, device threads, decoders, isolation, data sets; and stages."""
    decoders = [name for name in bench.device.decoders() if name != "nvimgcodec"]
    plan: list[Row] = [{"threads": threads} for threads in THREADS]
    plan += [{"decoder": decoder, "device threads": count} for decoder in decoders for count in DEVICE_THREADS]
    plan += [{"decoder": "cpu"}, {"isolate": False}]
    plan += [{"data": name, "isolate": isolate} for name in ("640x480", "megapixel") for isolate in (True, False)]
    usual = {"data": "photographs", "decoder": "auto", "threads": 16, "device threads": device.THREADS, "isolate": True}
    found = [Case("Stages", {"data": "photographs"}, partial(stages, bench, bench.work / "photographs"), weight=2)]
    return found + [Case(TABLE, {**usual, **names}, partial(job, bench, {**usual, **names})) for names in plan]


def warm(bench: Bench) -> None:
    """Compile all kernels, which takes half a minute on a machine that has none yet."""
    for decoder in ("cpu", "auto"):
        options = {"batch_size": 2, "transform": bench.standard, "decoder": decoder, "isolate": False}
        loader = bench.device.loader(bench.work / "once", **options)
        for _ in islice(loader, 1):
            pass
        loader.close()


def job(bench: Bench, names: Row, seconds: float) -> Row:
    """Images/s of one loader."""
    with device_threads(names["device threads"]), Engines(bench.device.device) as engines:
        loader = open_loader(bench, bench.work / names["data"], names)
        batches = chain.from_iterable(repeat(loader))
        try:
            for _ in islice(batches, 1 if bench.tiny else WARM):
                pass
            row = measure(bench, loader, batches, seconds)
        finally:
            del batches
            loader.close()
    return {**row, **engines.row}


def open_loader(bench: Bench, path: Path, names: Row) -> picstore.Loader:
    """The loader of a row."""
    return bench.device.loader(
        path,
        batch_size=bench.batch,
        transform=bench.standard,
        threads=names["threads"],
        decoder=names["decoder"],
        isolate=names["isolate"],
    )


@contextlib.contextmanager
def device_threads(count: int) -> Iterator[None]:
    """Let loaders that begin now have so many threads that decode on the device."""
    kept, device.THREADS = device.THREADS, count
    try:
        yield
    finally:
        device.THREADS = kept


def measure(bench: Bench, loader: picstore.Loader, batches: Iterator[Any], seconds: float) -> Row:
    """Take batches for a while."""
    bench.device.synchronize()
    before, start, cpu, images = loader.stats, time.perf_counter(), time.process_time(), 0
    while not images or time.perf_counter() - start < seconds:
        images += len(next(batches))
    bench.device.synchronize()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    stats = loader.stats - before
    return {
        "images/s": images / wall,
        "µs of CPU here": cpu / images * 1e6,
        "µs of loader threads": stats.working / max(stats.images, 1) * 1e6,
        "waited for batches, %": 100 * stats.waited_on_decode / wall,
    }


class Watch:
    """Times calls of a stage: of its thread, on the clock, and of the device's stream; in microseconds an image."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.calls: dict[str, list[tuple[float, float, float, int]]] = {}

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed; its first argument has the images."""

        def timed(*arguments: Any, **options: Any) -> Any:
            cpu, wall, ticks = time.thread_time(), time.perf_counter(), self._bench.device.ticks()
            result = function(*arguments, **options)
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            self.calls.setdefault(name, []).append((cpu * 1e6, wall * 1e6, ticks() * 1000, len(arguments[0])))
            return result

        return timed

    def row(self, name: str, *, skip: int) -> Row:
        """Averages, without the first calls."""
        calls = self.calls.get(name, [])[skip:]
        images = sum(call[3] for call in calls) or 1
        cpu, wall, device = (sum(call[k] for call in calls) / images for k in range(3))
        return {"stage": name, "µs of CPU": cpu, "µs on the clock": wall, "µs of the device": device}


def stages(bench: Bench, path: Path, seconds: float) -> list[Row]:
    """µs an image by stage, each by itself: one device thread, which waits for the device after each stage."""
    watch, real = Watch(bench), (device.decode_all, device.augment_images)
    decode, finish = watch.of("decode", real[0]), watch.of("augment", real[1])
    upload = watch.of("upload alone", lambda streams: torch.cat(list(streams)).to(bench.device.device))

    def decode_all(streams: Any, *arguments: Any, **options: Any) -> Any:
        upload(streams)
        return decode(streams, *arguments, **options)

    device.decode_all, device.augment_images = decode_all, finish
    names = {"threads": 16, "decoder": "auto", "isolate": True, "device threads": 1, "data": path.name}
    try:
        row = job(bench, names, seconds)
    finally:
        device.decode_all, device.augment_images = real
    skip = 0 if bench.tiny else 4
    cutting = {"stage": "reading, planning, cutting (16 threads)", "µs on the clock": row["µs of loader threads"]}
    return [cutting, *(watch.row(name, skip=skip) for name in ("upload alone", "decode", "augment"))]
