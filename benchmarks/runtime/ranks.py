"""Ranks whose number does not divide the lanes: what they read of an epoch, and the time of a request at 10**8 records.

The data set has a manifest and an index but no images, as in ``resume``.
"""

from __future__ import annotations

import time
from itertools import islice

import numpy as np

from benchmarks.harness import Row, Table
from benchmarks.options import Options
from benchmarks.runtime.resume import BATCH, EPOCH, RECORDS, write_index
from picstore import Dataset
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.rank_shares import RankShares
from picstore.train.order.requests import TrainingSource

CHANGES = ((32, 1), (32, 3), (32, 5), (32, 6), (32, 7), (32, 8), (64, 48), (64, 96), (1024, 1000))  # lanes and ranks
_BATCHES = 40


def ranks(options: Options) -> Table:
    """Bytes of an epoch, records read alone, and milliseconds of a request and of resuming, by lanes and ranks."""
    path = options.work / "index-only"
    path.mkdir()
    write_index(path, 3_200 if options.quick else 100_000)
    dataset = Dataset(path)
    rows = [_row(dataset, lanes, world_size) for lanes, world_size in CHANGES]
    return Table(f"{len(dataset):,} records, containers of {RECORDS:,}, batches of {BATCH} a rank; ms of a core", rows)


def _row(dataset: Dataset, lanes: int, world_size: int) -> Row:
    rank_shares, alone = RankShares(lanes, world_size), 0
    for batch in range(_BATCHES):
        start, size = batch * BATCH * world_size, BATCH * world_size
        lane, turn = rank_shares.lanes_of(np.arange(start, start + size), len(dataset))
        owners, (first, last) = rank_shares.deal(lane, turn), rank_shares.find_readers(lane)
        alone += int(((owners < first) | (owners > last)).sum())
    shard = RankShard(records=len(dataset), lanes=lanes, batch=BATCH * world_size, rank=0, world_size=world_size)
    order, sources = DatasetOrder(shard, seed=0), [TrainingSource(dataset, 0)]
    state = order.state(EPOCH, order.length(EPOCH) // 2)
    begin = time.process_time()
    epoch, first = order.position(state)
    requests = order.requests(sources, epoch=epoch, first=first)
    next(requests)
    resumed = time.process_time()
    for _ in islice(requests, _BATCHES):
        pass
    return {
        "lanes": lanes,
        "ranks": world_size,
        "bytes read, times the data set": round(sum(map(rank_shares.count_lanes, range(world_size))) / lanes, 3),
        "(L + W) / L": round((lanes + world_size) / lanes, 3),
        "records read alone, %": round(100 * alone / (_BATCHES * BATCH * world_size), 3),
        "resuming, ms": round(1e3 * (resumed - begin), 1),
        "a request, ms": round(1e3 * (time.process_time() - resumed) / _BATCHES, 2),
    }
