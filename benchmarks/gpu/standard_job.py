"""The standard job to a GPU from the page cache, by data set, threads, decoder and processes."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.gpu.device import Device, Engines, dataset, datasets
from benchmarks.gpu.expected import ASKED_STANDARD, LOSSLESS, expected
from benchmarks.harness import Case, Row, Sample, Table, measure, tabulate
from benchmarks.options import Options

WARM = 8  # batches: kernels are compiled, memory is taken, each lane has read a container


def standard(options: Options) -> Table:
    """Images/s of loaders with 1 to 16 threads, each decoder, in 1 to 4 processes of its own or in none."""
    device = Device(options)
    paths = datasets(device, options) if device.cuda else {LOSSLESS: dataset(options)}
    plan: list[tuple[str, dict[str, Any]]] = []
    for photographs in reversed(paths):
        if device.cuda:
            plan += [
                (photographs, {"threads": 16, "decoder": name}) for name in ("picstore", "cpu", *device.decoders())
            ]
            plan += [(photographs, {"threads": 16, "processes": count, "decoder": "picstore"}) for count in (2, 4)]
    more: list[dict[str, Any]] = [{"threads": threads} for threads in (16, 1, 2, 4, 8)]
    more += [{"threads": 16, "isolate": False}]
    decoder = {"decoder": "picstore"} if device.cuda else {}
    plan += [(LOSSLESS, {**names, **decoder}) for names in more if not device.cuda or names != more[0]]
    plan = plan[:2] if options.quick else plan
    rounds = options.round_count(2)
    seconds = device.sample_seconds(rounds * len(plan))
    cases = []
    for photographs, names in plan:
        title = ", ".join([photographs, *(f"{name} {value}" for name, value in names.items())])
        figures: Row = {"asked": f"{ASKED_STANDARD:,}"} if names.get("decoder") == "picstore" else {}
        if figures:
            figures["predicted of decoding alone"] = expected("all of decoding", photographs)
        cases.append(Case(title, _runner(device, paths[photographs], names, seconds), figures=figures))
    results = measure(cases, rounds=rounds, warmups=0, seconds=device.seconds)
    return tabulate(results, device.about, first="the first")


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
        if device.cuda:
            figures |= {"images left to the CPU": stats.fallbacks, "batches copied first": stats.copied}
        return Sample(images, wall, figures | engines.figures)
    finally:
        del batches
        loader.close()
