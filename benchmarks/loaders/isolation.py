"""Loader and training step on the same cores: threads of one process, and a loader process (``isolate=True``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

import picstore
from benchmarks.dataset import write_dataset
from benchmarks.harness import Case, Sample, Table, Unit, join, measure, tabulate
from benchmarks.options import Options

BATCH = 128
STEP = 0.060  # seconds that a step takes alone
MATRIX = torch.ones(256, 256)
BATCHES_PER_SECOND = Unit("batches/s", lambda sample: sample.items / sample.seconds)

Step = Callable[[], object]


def isolate(options: Options) -> Table:
    """Batches/s of the standard job beside a step of 60 ms, and the time that the step takes beside the loader.

    ``Python`` holds the interpreter's lock, as a loop of many small operations does; ``matrices`` multiplies on one
    core and releases it; ``sleep`` takes no core, as a step on a GPU does.
    """
    torch.set_num_threads(1)
    dataset = write_dataset(options)
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    loaders = {
        name: picstore.Loader(dataset, batch_size=16 if options.quick else BATCH, transform=transform, isolate=isolated)
        for name, isolated in (("threads", False), ("loader process", True))
    }
    count, tables = 4 if options.quick else 40, []
    for name, step in _steps().items():
        cases = [Case(mode, partial(_run, loader, step, count)) for mode, loader in loaders.items()]
        results = measure(cases, rounds=options.round_count(3), warmups=0)
        tables.append(tabulate(results, "", unit=BATCHES_PER_SECOND, first="threads", names={"step": name}))
    for loader in loaders.values():
        loader.close()
    return Table(f"batches of {BATCH}, step of {STEP * 1e3:.0f} ms", join(tables).rows, join(tables).samples)


def _steps() -> dict[str, Step]:
    steps: dict[str, Step] = {"none": lambda: None, "sleep": lambda: time.sleep(STEP)}
    works: dict[str, Step] = {"Python": lambda: sum(range(100)), "matrices": lambda: torch.mm(MATRIX, MATRIX)}
    for name, work in works.items():
        count = 64
        while (seconds := _seconds(partial(_repeat, work, count))) < 0.2:
            count *= 2
        steps[name] = partial(_repeat, work, int(count * STEP / seconds))
    return steps


def _repeat(work: Step, count: int) -> None:
    for _ in range(count):
        work()


def _seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _run(loader: picstore.Loader, step: Step, count: int, _: None) -> Sample:
    """Take batches, two of them to warm up."""
    steps, start = [], 0.0
    while True:
        for _batch in loader:
            if len(steps) == 2:
                start = time.perf_counter()
            steps.append(_seconds(step))
            if len(steps) == count + 2:
                elapsed = time.perf_counter() - start
                return Sample(count, elapsed, {"step, ms": sum(steps[2:]) / count * 1e3})
