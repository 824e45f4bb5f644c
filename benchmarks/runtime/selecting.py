"""Selecting, splitting and weighing 10**9 records, from the manifest and the index alone."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

import picstore
from benchmarks.child import call
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from benchmarks.runtime.resume import BATCH, EPOCH, LANES, write_index
from benchmarks.runtime.scale import PER_CONTAINER
from picstore.arrays import Bools
from picstore.storage.dataset import Dataset
from picstore.storage.split_parts import assign_parts, split_bounds
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.requests import TrainingSource
from picstore.train.order.weights import RecordShares, record_shares

T = TypeVar("T")
_PIECE = 10**8  # ids to make at a time


def selecting(options: Options) -> Table:
    """Time and memory of a split, a selection and weights, and of resuming with them in the middle of an epoch."""
    rows = call("benchmarks.runtime.selecting:simulate", str(options.work), 10**6 if options.quick else 10**9)
    return Table(f"manifest and index alone, {PER_CONTAINER} records in a container; from the page cache", rows)


def simulate(work: str, count: int) -> list[Row]:
    """Rows of the table, for a data set of so many records."""
    root = Path(work) / "selecting"
    write_index(root, count // PER_CONTAINER, per_file=125, records=PER_CONTAINER)
    dataset, rows = picstore.Dataset(root), []

    def timed(what: str, run: Callable[[], T]) -> T:
        start = time.process_time()
        result = run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        rows.append({"what": what, "seconds of a core": time.process_time() - start, "peak memory so far, MiB": peak})
        return result

    _resume(dataset, None, f"{len(dataset):,} records", timed)
    mask = timed("the part of each id, of a split by 0.9", lambda: _second_part(len(dataset)))
    selection = timed("the second part as a data set", lambda: dataset.select(mask))
    _resume(selection, None, f"{len(selection):,} selected records", timed)
    weights = np.random.default_rng(0).integers(0, 256, len(dataset), dtype=np.uint8)
    shares = timed(
        "shares of weights from 0 to 255",
        lambda: record_shares(dataset, weights=weights, balance=None, repeat=1, seed=0),
    )
    _resume(dataset, shares, f"{len(dataset):,} weighted records", timed)
    return rows


def _second_part(count: int) -> Bools:
    """Mark the second part of a split of the ids from 0 on."""
    bounds = split_bounds((0.9,))
    pieces = (np.arange(start, min(count, start + _PIECE)) for start in range(0, count, _PIECE))
    return np.concatenate([assign_parts(ids, bounds, seed=0) == 1 for ids in pieces])


def _resume(
    dataset: Dataset, shares: RecordShares | None, name: str, timed: Callable[[str, Callable[[], object]], object]
) -> None:
    """Time the first request of a resumed loader, and one that follows."""
    records = len(dataset) if shares is None else shares.samples
    shard = RankShard(records=records, lanes=LANES, batch=BATCH)
    order, source = DatasetOrder(shard, 0, dataset.identity, shares), TrainingSource(dataset, 0)
    state = order.state(EPOCH, shard.batches // 2)
    requests = order.requests([source], epoch=EPOCH, first=order.position(state)[1])
    size = len(json.dumps(state))
    timed(f"{name}: the request of the next batch, of a state of {size} bytes", lambda: next(requests))
    timed(f"{name}: 100 requests that follow", lambda: [next(requests) for _ in range(100)])
