"""What two cores tell of more: the standard job on one and on two, by one process and by two, and without kernels."""

from __future__ import annotations

import contextlib
import os
import time
from statistics import median
from typing import Any

import picstore
from benchmarks.child import ChildProcess
from benchmarks.dataset import write_dataset
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options

PREDICTED = (4, 8, 16, 32, 64)  # cores
_START, _SECONDS = 6.0, 6.0  # until processes have made some batches, and what is measured then
_BATCH = 64
ONE, TWO = "1 core", "2 cores"
PROCESSES = "2 cores, a process on each"
WITHOUT = "2 cores, kernels that return at once"


def cores(options: Options) -> Table:
    """Images/s of the standard job on 1 and 2 cores, and what is calculated of it for more.

    Two cores may share caches, memory and, as hyperthreads, most of a core. What they give at most is what two
    processes make, one on each. The serial share s is what threads of one process fall short of that: with the time
    t of an image on a core that works beside another, n cores take t · (s + (1 − s) / n). With kernels that return at
    once, reading, checking and Python remain: so many images one process makes where more cores decode them.
    """
    dataset = str(write_dataset(options))
    jobs = {ONE: [[0]], TWO: [[0, 1]], PROCESSES: [[0], [1]], WITHOUT: [[0, 1]]}
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(options.round_count(5)):
        for name, processes in jobs.items():
            found[name].append(_run(dataset, processes, kernels=name != WITHOUT, quick=options.quick))
            say(f"{name}: {found[name][-1]:.0f} images/s")
    speeds = {name: median(each) for name, each in found.items()}
    serial = min(1.0, max(0.0, speeds[PROCESSES] / speeds[TWO] - 1))
    rows: list[Row] = [{"on": name, "images/s": speed, "is": "measured"} for name, speed in speeds.items()]
    calculated = ((count, speeds[PROCESSES] / 2 / (serial + (1 - serial) / count)) for count in PREDICTED)
    rows += [{"on": f"{count} cores", "images/s": speed, "is": "calculated"} for count, speed in calculated]
    about = f"standard job, threads; serial share {serial:.3f} by the medians of {len(found[ONE])} rounds"
    return Table(about, rows, found)


def _run(dataset: str, processes: list[list[int]], *, kernels: bool, quick: bool) -> float:
    """Images/s of processes together, each on some of the cores."""
    begin = time.time() + _START
    target = "benchmarks.runtime.cores:images_per_second"
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(ChildProcess(target, dataset, cores, begin, 1.0 if quick else _SECONDS, kernels))
            for cores in processes
        ]
        return sum(child.answer() for child in children)


def images_per_second(dataset: str, numbers: list[int], begin: float, seconds: float, kernels: bool) -> float:
    """Images/s of the standard job in this process, on some of its cores by number, from a time on."""
    available = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [available[number % len(available)] for number in numbers])
    if not kernels:
        _remove_kernels()
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    loader = picstore.Loader(dataset, batch_size=_BATCH, transform=transform, threads=len(numbers), isolate=False)
    images, first = 0, 0.0
    with contextlib.closing(loader):
        while True:
            for _ in loader:
                now = time.time()
                if now >= begin:
                    images += _BATCH if first else 0
                    first = first or now
                if now >= begin + seconds:
                    return images / (now - first)


def _remove_kernels() -> None:
    """Replace the fused kernel of this process by one that returns at once."""
    from picstore.kernels.jit import kernel
    from picstore.train.cpu import fused

    def fill_nothing(
        slots: Any, marks: Any, _streams: Any, _geometry: Any, _arrays: Any, _targets: Any, _stages: Any
    ) -> Any:
        marks[1][slots[0] : slots[1]] = True
        return slots[1]

    fused.run_fused = kernel(fused.run_fused.signature)(fill_nothing)
