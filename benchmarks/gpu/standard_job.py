"""The standard job to a GPU from the page cache, by threads, decoder and process."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.gpu.device import Device, Engines, dataset
from benchmarks.harness import Case, Sample, Table, measure, tabulate
from benchmarks.options import Options

WARM = 8  # batches: kernels are compiled, memory is taken, each lane has read a container


def standard(options: Options) -> Table:
    """Images/s of loaders with 1 to 16 threads, each decoder, in a process of its own or not."""
    device, path = Device(options), dataset(options)
    plan: list[dict[str, Any]] = [{"threads": threads} for threads in (16, 1, 2, 4, 8)]
    plan += [{"threads": 16, "isolate": False}]
    if device.cuda:
        plan += [{"threads": 16, "decoder": name} for name in ("picstore", "cpu", *device.decoders())]
    plan = plan[:2] if options.quick else plan
    rounds = options.round_count(2)
    seconds = device.seconds / rounds / len(plan) / 2
    cases = [
        Case(", ".join(f"{name} {value}" for name, value in names.items()), _runner(device, path, names, seconds))
        for names in plan
    ]
    results = measure(cases, rounds=rounds, warmups=0, seconds=device.seconds)
    return tabulate(results, f"{device.about}; asked: 50,000 images/s", first="the first")


def _runner(device: Device, path: Any, names: dict[str, Any], seconds: float) -> Any:
    return lambda _: run_loader(device, device.loader(path, **names), seconds)


def run_loader(device: Device, loader: Any, seconds: float) -> Sample:
    """Take batches for a while, after some that warm up; closes the loader."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    try:
        for _ in itertools.islice(batches, WARM):
            pass
        device.synchronize()
        with Engines(device) as engines:
            before, start, cpu, images = loader.stats, time.perf_counter(), time.process_time(), 0
            while not images or time.perf_counter() - start < seconds:
                images += len(next(batches))
            device.synchronize()
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        stats = loader.stats - before
        figures = {"µs of CPU here": cpu / images * 1e6, "µs of loader threads": stats.working / images * 1e6}
        figures["waited for batches, %"] = 100 * stats.waited_on_decode / wall
        return Sample(images, wall, figures | engines.figures)
    finally:
        del batches
        loader.close()
