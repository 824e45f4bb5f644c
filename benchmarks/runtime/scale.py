"""What is known of scale without the hardware: cores, memory traffic, 10**9 records, 10**6 files in an object store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import picstore
from benchmarks.child import call
from benchmarks.dataset import write_dataset
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from benchmarks.runtime.resume import BATCH, EPOCH, LANES, write_index
from benchmarks.torture.objects import object_stage
from picstore.storage.location.resolve import locate
from picstore.train.order.requests import DatasetOrder, TrainingSource
from picstore.train.order.sharding import RankShard

PREDICTED = (4, 8, 16, 32, 64)  # cores
PER_CONTAINER = 80  # records: 8 MiB of photographs of 100 KB


def cores(options: Options) -> Table:
    """Images/s of the standard job on 1 and 2 cores, and what a serial share fitted to these two predicts for more.

    Amdahl's law: T(n) = T(1) × (s + (1 − s) / n). The share s holds whatever two cores do not halve: Python under its
    lock, memory bandwidth that they share, and the clock, which falls. More cores are a calculation.
    """
    dataset = write_dataset(options)
    rounds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(options.round_count(5)):
        for count, found in rounds.items():
            found.append(call("benchmarks.runtime.scale:images_per_second", str(dataset), count, options.quick))
            say(f"{count} cores: {found[-1]:.0f} images/s")
    one, two = (sorted(found)[len(found) // 2] for found in rounds.values())
    serial = min(1.0, max(0.0, 2 * one / two - 1))
    rows: list[Row] = [{"cores": 1, "images/s": one, "is": "measured"}, {"cores": 2, "images/s": two, "is": "measured"}]
    predicted = ((count, one / (serial + (1 - serial) / count)) for count in PREDICTED)
    rows += [{"cores": count, "images/s": speed, "is": "calculated"} for count, speed in predicted]
    about = f"standard job, threads of one process; serial share {serial:.3f} by the medians of {len(rounds[1])} rounds"
    samples = {str(count): found for count, found in rounds.items()}
    return Table(about, rows, samples)


def images_per_second(dataset: str, count: int, quick: bool) -> float:
    """Images/s of the standard job in this process, on so many cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    loader = picstore.Loader(dataset, batch_size=64, transform=transform, threads=count, isolate=False)
    batches, limit = 0, 4 if quick else 40
    with contextlib.closing(loader):
        start = time.perf_counter()
        while True:
            for _ in loader:
                batches += 1
                if batches == 4:  # kernels are loaded, and buffers are there
                    start = time.perf_counter()
                if batches == 4 + limit:
                    return 64 * limit / (time.perf_counter() - start)


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
    shard = RankShard(records=len(dataset), lanes=LANES, batch_size=BATCH)
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
