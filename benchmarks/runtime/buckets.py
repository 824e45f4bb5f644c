"""Resuming with buckets in the middle of an epoch, from 10**6 to 10**9 records, by the manifest and the index alone."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import numpy as np

import picstore
from benchmarks.child import call
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from benchmarks.runtime.resume import EPOCH, LANES, write_index
from benchmarks.runtime.scale import PER_CONTAINER
from picstore.arrays import U8
from picstore.train.order.bucket_order import BucketOrder
from picstore.train.order.bucket_plan import BucketTable
from picstore.train.order.requests import TrainingSource

# Of 256 records, by bucket: most are of cameras' three aspect ratios, and one in 256 is of the rarest.
SHARES = (1, 2, 4, 8, 48, 64, 80, 32, 8, 5, 4)
BATCH = 64
_PIECE = 10**7  # records to draw at a time


def buckets(options: Options) -> Table:
    """Time and memory of a loader's order with buckets: made, resumed in the middle of an epoch, and going on."""
    sizes = (10**6,) if options.quick else (10**6, 10**7, 10**8, 10**9)
    rows = [call("benchmarks.runtime.buckets:simulate", str(options.work), size) for size in sizes]
    about = f"{len(SHARES)} buckets, batches of {BATCH}, {PER_CONTAINER} records in a container, {LANES} lanes"
    return Table(f"{about}; seconds of a core", rows)


def simulate(work: str, count: int) -> Row:
    """A row of the table, for a data set of so many records."""
    root = Path(work) / f"buckets-{count}"
    write_index(root, count // PER_CONTAINER, per_file=125, records=PER_CONTAINER)
    dataset, drawn = picstore.Dataset(root), _draw(count)
    begin = time.process_time()
    table = BucketTable.count(dataset.live.counts, drawn, len(SHARES))
    order = BucketOrder(table=table, batch_sizes=((BATCH,),) * len(SHARES), lanes=LANES, seed=0)
    made = time.process_time()
    state = order.state(EPOCH, order.batches // 2)
    requests = order.requests([TrainingSource(dataset, 0)], epoch=EPOCH, first=order.position(state)[1])
    next(requests)
    resumed = time.process_time()
    for _ in range(5_000):
        next(requests)
    return {
        "records": count,
        "making the order": made - begin,
        "first request": resumed - made,
        "each of 5,000 that follow": (time.process_time() - resumed) / 5_000,
        "state, bytes": len(json.dumps(state)),
        "peak memory, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def _draw(count: int) -> U8:
    """Draw a bucket for each record."""
    of, drawn = np.repeat(np.arange(len(SHARES), dtype=np.uint8), SHARES), np.empty(count, dtype=np.uint8)
    generator = np.random.default_rng(0)
    for start in range(0, count, _PIECE):
        piece = drawn[start : start + _PIECE]
        piece[:] = of[generator.integers(0, len(of), len(piece), dtype=np.uint8)]
    return drawn
