"""Audit of a million samples: the records that a training drew, by the audit's arithmetic and record by record.

No file is read: the data set is counts of records, so that ids and paths, which an audit reads from the tables of the
containers, are left out for all contenders alike.
"""

from __future__ import annotations

import importlib
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.harness import SECONDS, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options
from picstore.arrays import I64
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.drawn_samples import drawn_samples
from picstore.train.order.global_batches import RankShard

RECORDS, CONTAINER, BATCH, SAMPLES, EPOCHS = 1_281_167, 80, 256, 1_000_000, 90
_PRIME = 1_000_003
DOCS = Path(__file__).parents[2] / "docs"


def audit(options: Options) -> Table:
    """Seconds and memory of each contender, and how much longer than the audit it takes for a sample."""
    records = RECORDS // 100 if options.quick else RECORDS
    counts = np.full(-(-records // CONTAINER), CONTAINER)
    counts[-1] -= counts.sum() - records
    starts = np.concatenate(([0], np.cumsum(counts)))
    live = LiveRecords.from_deleted(counts, np.zeros(0, np.int64), file="")
    order = DatasetOrder(RankShard(records=records, lanes=32, batch=BATCH), seed=0)
    steps = (SAMPLES // 100 if options.quick else SAMPLES) // BATCH
    drawn, docs = drawn_samples(order, [live]), _load_docs()

    def audited() -> Iterator[I64]:
        for part in drawn.samples(0, steps):
            yield part["position"]

    def requested() -> Iterator[I64]:
        source: Any = SimpleNamespace(dataset=SimpleNamespace(live=live), seed=0)
        for (request,), _ in zip(order.requests([source], epoch=0), range(steps), strict=False):
            yield starts[request.samples.container] + request.samples.record

    def by_docs() -> Iterator[I64]:
        for container, record in docs.epoch_order(counts.tolist(), seed=0, epoch=0, lanes=32)[: steps * BATCH]:
            yield np.array([starts[container] + record])

    def counted() -> Iterator[I64]:
        yield drawn.counts(0, EPOCHS * order.length(0))[0]

    cases = [
        Case("the audit's samples", lambda _: _timed(audited)),
        Case("a loader's requests, batch by batch", lambda _: _timed(requested)),
        Case("docs/order.py, record by record", lambda _: _timed(by_docs)),
    ]
    whole = [Case(f"the audit's counts of {EPOCHS} epochs", lambda _: _timed(counted, times=True))]
    results = measure(cases, rounds=options.round_count(3), warmups=0)
    results += measure(whole, rounds=options.round_count(3), warmups=0)
    about = f"{steps * BATCH:,} samples of {records:,} records in {len(counts):,} containers; batches of {BATCH}"
    return tabulate(results, about, unit=SECONDS, first="the audit")


def _load_docs() -> Any:
    """Import docs/order.py, which finds reader.py beside it."""
    sys.path.insert(0, str(DOCS))
    module = importlib.import_module("order")
    sys.path.remove(str(DOCS))
    return module


def _timed(positions: Callable[[], Iterator[I64]], *, times: bool = False) -> Sample:
    """Take all positions, once for the time and once more for the peak of the memory that was allocated."""
    start, number, check = time.perf_counter(), 0, 0
    for part in positions():
        check += int((part * np.arange(number, number + len(part)) % _PRIME).sum())
        number += int(part.sum()) if times else len(part)
    seconds = time.perf_counter() - start
    tracemalloc.start()
    for _ in positions():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Sample(number, seconds, {"peak, MiB": peak / (1 << 20)}, () if times else (check % _PRIME,))
