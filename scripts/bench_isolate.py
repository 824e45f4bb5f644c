"""Whether the loader's threads and a training step slow each other, in one process and with ``isolate=True``.

    python scripts/bench_isolate.py DATASET [--step 60] [--batches 40] [--rounds 3]

A step is a fixed amount of work that takes ``--step`` milliseconds alone. ``python`` holds the interpreter's lock all
the while, as a loop of many small operations does; ``torch`` multiplies matrices on one core and releases it; ``sleep``
takes no core, as a step on a GPU does. For each, threads and isolate take turns; printed are the medians of batches/s
and of what a step took beside the loader, and the ratio of isolate to threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

import picstore

BATCH = 128
MATRIX = torch.ones(256, 256)

Step = Callable[[], None]


def python_work(count: int) -> None:
    """Hold the lock."""
    for _ in range(count):
        sum(range(100))


def torch_work(count: int) -> None:
    """Multiply matrices."""
    for _ in range(count):
        torch.mm(MATRIX, MATRIX)


def make_steps(milliseconds: float) -> dict[str, Step]:
    """Steps that take so long alone."""
    steps: dict[str, Step] = {"sleep": partial(time.sleep, milliseconds / 1000)}
    for name, work in (("python", python_work), ("torch", torch_work)):
        count = 64
        while (seconds := timed(partial(work, count))) < 0.2:
            count *= 2
        steps[name] = partial(work, int(count * milliseconds / 1000 / seconds))
    return steps


def timed(step: Step) -> float:
    """Seconds on the clock."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def run(loader: picstore.Loader, step: Step, batches: int) -> tuple[float, float]:
    """Batches/s, and milliseconds of a step, after two batches to warm up."""
    seconds, taken, start = [], 0, 0.0
    while True:
        for _ in loader:
            if taken == 2:
                start, seconds = time.perf_counter(), []
            seconds.append(timed(step))
            taken += 1
            if taken == batches + 2:
                return batches / (time.perf_counter() - start), statistics.mean(seconds) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--step", type=float, default=60, help="milliseconds")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    loaders = {
        name: picstore.Loader(options.dataset, batch_size=BATCH, transform=transform, isolate=name == "isolate")
        for name in ("threads", "isolate")
    }
    steps = {"none": lambda: None, **make_steps(options.step)}
    print(f"{'step':<8}{'mode':<9}{'batches/s':>10}{'images/s':>10}{'step ms':>9}{'isolate/threads':>17}")
    for name, step in steps.items():
        rates: dict[str, float] = {}
        found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in loaders}
        for _ in range(options.rounds):
            for mode, loader in loaders.items():
                found[mode].append(run(loader, step, options.batches))
        for mode, results in found.items():
            rate, took = (statistics.median(column) for column in zip(*results, strict=True))
            rates[mode] = rate
            ratio = f"{rates['isolate'] / rates['threads']:.2f}" if mode == "isolate" else ""
            print(f"{name:<8}{mode:<9}{rate:>10.2f}{rate * BATCH:>10,.0f}{took:>9.1f}{ratio:>17}", flush=True)
    for loader in loaders.values():
        loader.close()


if __name__ == "__main__":
    main()
