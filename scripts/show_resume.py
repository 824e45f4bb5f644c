"""What resuming costs: from a loaded state to the first request for a batch, in the middle of 100 million records.

    python scripts/show_resume.py [--containers 100000] [--records 1000]

The data set has a manifest and an index but no images: a request says which records are read, and is all that a place
in the order decides. Each round opens a loader and resumes it anew; the parts below are timed by themselves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from picstore import rng
from picstore.storage.dataset import Dataset
from picstore.storage.format.file import FileSummary
from picstore.storage.format.layout import FOOTER_ROW
from picstore.storage.publish import publish_dataset
from picstore.train.loader import Loader
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.requests import Source, make_requests
from picstore.train.order.sharding import RankShard

ROUNDS = 21
LIMIT = 0.050  # seconds
CONTAINER = 8 << 20
IN_FILE = 32
BATCH, LANES = 256, 32


def write_index(root: Path, *, containers: int, records: int) -> Path:
    """A data set of which only the manifest and the index exist."""
    footer = np.zeros(min(IN_FILE, containers), dtype=FOOTER_ROW)
    footer["offset"] = 4096 + CONTAINER * np.arange(len(footer))
    footer["size"], footer["records"] = CONTAINER, records
    summaries = [
        FileSummary(file % 16, file // 16, CONTAINER * (len(footer) + 1), records * len(footer), 0, footer)
        for file in range(containers // len(footer))
    ]
    publish_dataset(root, summaries, streams=16, container_size=CONTAINER, encode={}, provenance={})
    return root


def median(work: Callable[[], object]) -> float:
    """Median seconds of some rounds."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def show(what: str, seconds: float) -> None:
    print(f"{what:<58}{seconds * 1e3:9.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--containers", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=1_000, help="in each container")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_index(Path(folder), containers=options.containers, records=options.records)
        measure(path)


def measure(path: Path) -> None:
    """Print the whole and its parts."""
    dataset = Dataset(path)
    loader = Loader(path, batch_size=BATCH, lanes=LANES)
    half = len(loader) // 2
    state = {**loader.state_dict(), "epoch": 3, "samples": half * BATCH}
    share = RankShard(records=len(dataset), lanes=LANES, batch_size=BATCH)
    sources = [Source(dataset, 0)]

    def resume() -> None:
        loader.load_state_dict(state)
        next(make_requests(sources, share=share, seed=0, epoch=3, first=half))

    print(f"{len(dataset):,} records in {len(dataset.rows):,} containers; median of {ROUNDS}")
    show("opening the data set, from the page cache", median(lambda: Dataset(path)))
    whole = median(resume)
    show("load_state_dict and the first request", whole)
    counts = dataset.rows["records"]
    key = rng.key(rng.PLAN, 0, 3)
    show("  of it: permuting the containers", median(lambda: rng.permutation(key, len(counts))))
    show("  of it: the plan of the epoch, permuting included", median(lambda: epoch_of(counts)))
    numbers = share.samples(*share.bounds(half))
    order = epoch_of(counts)
    start = time.perf_counter()
    order.locate(numbers)
    show("  of it: locating the batch, permuting its containers", time.perf_counter() - start)
    show("each request that follows", median(lambda: order.locate(numbers)))
    print(f"asked: {LIMIT * 1e3:.0f} ms; {'reached' if whole < LIMIT else 'missed'}")


def epoch_of(counts: np.ndarray) -> EpochOrder:
    return EpochOrder(counts, seed=0, epoch=3, lanes=LANES)


if __name__ == "__main__":
    main()
