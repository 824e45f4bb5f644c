"""What is known of scale without the hardware: 10**9 records, and 10**6 files in an object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import picstore
from benchmarks.child import call
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from benchmarks.runtime.resume import BATCH, EPOCH, LANES, write_index
from benchmarks.torture.objects import object_stage
from picstore.storage.location.resolve import locate
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.requests import TrainingSource

PER_CONTAINER = 80  # records: 8 MiB of photographs of 100 KB


def records(options: Options) -> Table:
    """Opening, resuming and going on with 10**9 records, and opening 10**6 files in an object store."""
    rows = call("benchmarks.runtime.scale:billion", str(options.work), 10**6 if options.quick else 10**9)
    rows += call("benchmarks.runtime.scale:million_files", str(options.work), 10**3 if options.quick else 10**6)
    about = f"manifest and index alone, {PER_CONTAINER} records in a container; from the page cache"
    return Table(about, rows)


def billion(work: str, count: int) -> list[Row]:
    """Seconds that it takes to open and resume a data set of so many records."""
    root = Path(work) / "billion"
    write_index(root, count // PER_CONTAINER, per_file=125, records=PER_CONTAINER)
    opened, dataset = _timed(lambda: picstore.Dataset(root))
    shard = RankShard(records=len(dataset), lanes=LANES, batch=BATCH)
    order, source = DatasetOrder(shard, seed=0), TrainingSource(dataset, 0)
    state = order.state(EPOCH, shard.batches // 2)
    first = _timed(lambda: next(order.requests([source], epoch=EPOCH, first=order.position(state)[1])))[0]
    following = order.requests([source], epoch=EPOCH, first=shard.batches // 2)
    next(following)
    more = _timed(lambda: [next(following) for _ in range(100)])[0] / 100
    name = f"{len(dataset):,} records in {len(dataset.rows):,} containers"
    size = sum(path.stat().st_size for path in root.iterdir()) >> 20
    return [
        {"what": f"{name}: opening, {size:,} MiB of manifest, copy and index", "seconds": opened},
        {"what": "the state of a loader, and the request of its next batch", "seconds": first},
        {"what": "each request that follows", "seconds": more},
    ]


def million_files(work: str, count: int) -> list[Row]:
    """Seconds to open a data set of so many files in an object store."""
    root = Path(work) / "files"
    write_index(root, count, per_file=1, records=PER_CONTAINER)
    rows: list[Row] = []
    with object_stage(Path(work) / "stage") as stage:
        for name, _ in locate(root).files():
            (locate(root) / name).copy_to(stage.dataset / name)
        seconds, dataset = _timed(lambda: picstore.Dataset(stage.dataset))
        rows.append({"what": f"{len(dataset.manifest.files):,} files in an object store: opening", "seconds": seconds})
    rows.append({"what": "the same in a folder", "seconds": _timed(lambda: picstore.Dataset(root))[0]})
    return rows


def _timed(run: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result
