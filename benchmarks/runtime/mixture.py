"""Mixtures of many data sets: images/s, memory, time of a request, and size of a state, by the number of sources."""

from __future__ import annotations

import contextlib
import json
import resource
import time
from itertools import islice, pairwise

import picstore
from benchmarks.child import call
from benchmarks.dataset import write_dataset
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from picstore.train.order.mux_order import MuxOrder

SOURCES = (1, 2, 35, 140)
_BATCH = 140  # of every source as many
_SCHEDULE = 1000  # steps of it
_REQUESTS = 500


def mixture(options: Options) -> Table:
    """A row for each number of sources, measured in a process of its own."""
    dataset = str(write_dataset(options))
    rows = [call("benchmarks.runtime.mixture:measure", dataset, count, options.quick) for count in SOURCES]
    about = f"the standard job's transforms, batches of {_BATCH}, a schedule of {_SCHEDULE:,} steps; {options.workers}"
    return Table(f"{about} threads", rows)


def measure(path: str, count: int, quick: bool) -> Row:
    """Make batches of so many sources, each an equal part of the data set."""
    dataset = picstore.Dataset(path)
    ends = [len(dataset) * number // count for number in range(count + 1)]
    parts = [dataset.select(list(range(*pair))) for pair in pairwise(ends)]
    counts = [_BATCH // count] * count
    mux = picstore.DataMux(
        [(part, 0, each) for part, each in zip(parts, counts, strict=True)],
        schedule=[(1000 + step, counts) for step in range(_SCHEDULE)],
        transform=[picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()],
        isolate=False,
        threads=2,
    )
    batches = 5 if quick else 60
    with contextlib.closing(mux):
        iterator = iter(mux)
        for _ in islice(iterator, 5):
            pass
        begin = time.perf_counter()
        for _ in islice(iterator, batches):
            pass
        rate = batches * _BATCH / (time.perf_counter() - begin)
        state = mux.state_dict()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    order = mux.order
    begin = time.process_time()
    order.position(state)
    found = time.process_time()
    for _ in islice(order.requests(mux.sources, epoch=0, first=10**6), _REQUESTS):
        pass
    return {
        "sources": count,
        "images/s": round(rate),
        "peak memory, MiB": peak,
        "lanes": _lanes(order),
        "a request, ms": round(1e3 * (time.process_time() - found) / _REQUESTS, 2),
        "resuming, ms": round(1e3 * (found - begin), 2),
        "state, bytes": len(json.dumps(state)),
    }


def _lanes(order: MuxOrder) -> int:
    return order.lanes * len(order.records)
