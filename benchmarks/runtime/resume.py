"""Resuming an epoch: from a loaded state to the first request, in the middle of 100 million records.

The data set has a manifest and an index but no images: a request names the records to read, which is all that a
position in the order decides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import MILLISECONDS, Case, Table, measure, tabulate
from benchmarks.options import Options
from picstore import Dataset, Loader, rng
from picstore.storage.format.container_index import FileSummary
from picstore.storage.format.layout import FOOTER_ROW
from picstore.storage.manifest_writer import publish_dataset
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.requests import TrainingSource

CONTAINER, PER_FILE, RECORDS = 8 << 20, 32, 1_000
BATCH, LANES, EPOCH = 256, 32, 3


def write_index(root: Path, containers: int, *, per_file: int = PER_FILE, records: int = RECORDS) -> None:
    """Write a data set of which only the manifest and the index exist; ``records`` counts each container's."""
    footer = np.zeros(per_file, dtype=FOOTER_ROW)
    footer["offset"] = 4096 + CONTAINER * np.arange(per_file)
    footer["size"], footer["records"] = CONTAINER, records
    summaries = [
        FileSummary(file % 16, file // 16, CONTAINER * (per_file + 1), records * per_file, 0, footer)
        for file in range(containers // per_file)
    ]
    publish_dataset(root, summaries, streams=16, container_size=CONTAINER, encode=None, provenance={})


def resume(options: Options) -> Table:
    """Milliseconds of the whole, of which 50 are asked, and of its steps."""
    path = options.work / "index-only"
    path.mkdir()
    write_index(path, 3_200 if options.quick else 100_000)
    dataset, loader = Dataset(path), Loader(path, batch_size=BATCH, lanes=LANES)
    half = len(loader) // 2
    state = {**loader.state_dict(), "epoch": EPOCH, "samples": half * BATCH}
    shard = RankShard(records=len(dataset), lanes=LANES, batch=BATCH)
    numbers, counts = shard.samples(half), dataset.rows["records"]

    def plan() -> EpochOrder:
        return EpochOrder(counts, seed=0, epoch=EPOCH, lanes=LANES)

    def resume_loader() -> None:
        loader.load_state_dict(state)
        next(DatasetOrder(shard, seed=0).requests([TrainingSource(dataset, 0)], epoch=EPOCH, first=half))

    order = plan()
    steps: dict[str, Callable[[], object]] = {
        "load_state_dict and the first request": resume_loader,
        "of it the permutation of the containers": lambda: rng.permutation(rng.key(rng.PLAN, 0, EPOCH), len(counts)),
        "of it the plan of the epoch, with that permutation": plan,
        "of it the plan and the batch's records": lambda: plan().locate(numbers),
        "each request that follows": lambda: order.locate(numbers),
        "opening the data set, from the page cache": lambda: Dataset(path),
    }

    def run(step: Callable[[], object]) -> int:
        step()
        return 1

    cases = [Case(name, run, lambda step=step: step) for name, step in steps.items()]
    results = measure(cases, rounds=options.round_count(21))
    about = f"{len(dataset):,} records in {len(dataset.rows):,} containers"
    return tabulate(results, about, unit=MILLISECONDS)
