"""How random the order of an epoch is: figures of the real plan over data sets stored in three ways.

    python scripts/show_order.py [--images 1280000] [--classes 1000] [--bytes 110000] [--lanes 32]

The input is sorted by class. ``converted`` is what convert makes of it, ``transpose`` and ``uniform`` are what shuffle
makes of that; where each image lies follows from the same draws that convert and shuffle make, without any image.
Beside each figure stands what a uniformly random order would give. Takes half a minute.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.prepare.convert.job import DatasetShape, count_rows, row_slice
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.sharding import RankShard

Ints = npt.NDArray[np.int64]
Files = dict[tuple[int, int], Ints]  # by stream and file, the inputs' numbers in the order of the file
SEED, BATCH = 0, 256


@dataclass(frozen=True)
class Stored:
    """A data set: records in each container, and the input's number at each place, both in stored order."""

    counts: Ints
    inputs: Ints


@dataclass(frozen=True)
class Order:
    """An epoch: what each sample is in the input, where it is stored, and in which container."""

    inputs: Ints
    places: Ints
    containers: Ints


def convert(images: int, image_bytes: int, shape: DatasetShape) -> Files:
    """Deal each row's groups of inputs to the streams, as ``prepare/pack.py`` does."""
    rows = count_rows(images, image_bytes, shape)
    files: Files = {}
    for row in range(rows):
        ids = np.array(row_slice(images, rows, row))
        groups = range(-(-len(ids) // shape.streams))
        deals = [rng.permutation(rng.key(rng.DEAL, shape.seed, row, group), shape.streams) for group in groups]
        streams = np.concatenate(deals)[: len(ids)]
        files.update({(stream, row): ids[streams == stream] for stream in range(shape.streams)})
    return files


def transpose(files: Files) -> Files:
    """Permute each file and swap stream and file, as ``prepare/shuffle.py`` does."""
    return {
        (file, stream): ids[rng.permutation(rng.key(rng.SHUFFLE, SEED, stream, file), len(ids))]
        for (stream, file), ids in files.items()
    }


def uniform(files: Files) -> Files:
    """Draw a file for each record and permute each file, as ``prepare/shuffle.py`` does."""
    names = sorted(files)
    ids = np.concatenate([files[name] for name in names])
    targets = rng.below(rng.key(rng.SHUFFLE, SEED), ids.astype(np.uint64), len(names))
    dealt = {}
    for number, (stream, file) in enumerate(names):
        mine = ids[targets == number]
        dealt[stream, file] = mine[rng.permutation(rng.key(rng.SHUFFLE, SEED, stream, file), len(mine))]
    return dealt


def store(files: Files, per_container: int) -> Stored:
    """Cut files into containers, and put them in the order of the index: by file, ordinal, stream."""
    containers = [
        (file, start, stream, ids[start : start + per_container])
        for (stream, file), ids in files.items()
        for start in range(0, len(ids), per_container)
    ]
    containers.sort(key=lambda container: container[:3])
    parts = [ids for *_, ids in containers]
    return Stored(np.array([len(part) for part in parts]), np.concatenate(parts))


def run_epoch(stored: Stored, epoch: int, lanes: int) -> Order:
    """The samples of an epoch, batch by batch, by the loader's plan."""
    share = RankShard(records=len(stored.inputs), lanes=lanes, batch_size=BATCH)
    order = EpochOrder(stored.counts, seed=SEED, epoch=epoch, lanes=lanes)
    starts = np.cumsum(stored.counts) - stored.counts
    batches = [order.locate(share.samples(*share.bounds(k))) for k in range(share.batches)]
    containers = np.concatenate([samples.container for samples in batches])
    places = starts[containers] + np.concatenate([samples.record for samples in batches])
    return Order(stored.inputs[places], places, containers)


def distinct(values: Ints) -> float:
    """Different values in a batch, on average."""
    batches = np.sort(values.reshape(-1, BATCH), axis=1)
    return float(1 + (np.diff(batches, axis=1) != 0).sum(axis=1).mean())


def same_class(order: Order, of_class: int) -> float:
    """Samples of an epoch whose successor has their class, in percent."""
    return float((np.diff(order.inputs // of_class) == 0).mean() * 100)


def apart(order: Order, _: Order) -> float:
    """How far apart two successive samples are stored, as a part of the data set, on average."""
    return float(np.abs(np.diff(order.places)).mean() / len(order.places))


def longest(values: Ints) -> int:
    """Most neighbours with the same value."""
    ends = np.flatnonzero(np.append(np.diff(values) != 0, True))
    return int(np.diff(ends, prepend=-1).max())


def mates_again(one: Order, other: Order) -> float:
    """With how many images of its batch an image shares a batch in another epoch too, on average."""
    batch = np.full(int(max(one.places.max(), other.places.max())) + 1, -1)
    batch[other.places] = np.arange(len(other.places)) // BATCH
    pairs = 0
    for mates in batch[one.places].reshape(-1, BATCH):
        _, counts = np.unique(mates[mates >= 0], return_counts=True)
        pairs += int((counts * (counts - 1)).sum())
    return pairs / len(one.places)


def moved(one: Order, other: Order) -> float:
    """How far an image moves from epoch to epoch, as a part of the epoch, on average."""
    when = np.full(int(max(one.places.max(), other.places.max())) + 1, -1)
    when[other.places] = np.arange(len(other.places))
    before = np.flatnonzero(when[one.places] >= 0)
    return float(np.abs(when[one.places[before]] - before).mean() / len(one.places))


def expected_distinct(total: int, of_each: float) -> float:
    """Different values in a batch of a uniform order in which each value comes ``of_each`` times."""
    log_none = sum(math.log1p(-of_each / (total - k)) for k in range(BATCH))
    return total / of_each * -math.expm1(log_none)


def expected_run(total: int, of_each: float) -> float:
    """Longest run to be expected: that of which there is one on average."""
    return 1 + math.log(total) / math.log(total / of_each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_280_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--bytes", type=int, default=110_000, help="of an image, on average")
    parser.add_argument("--lanes", type=int, default=32)
    options = parser.parse_args()
    shape, images = DatasetShape(), options.images
    of_class, of_container = images // options.classes, shape.container_size // options.bytes

    files = convert(images, options.bytes, shape)
    stored = [store(kind, of_container) for kind in (files, transpose(files), uniform(files))]
    epochs = [[run_epoch(each, epoch, options.lanes) for epoch in (0, 1)] for each in stored]

    def line(what: str, form: str, figure: Callable[[Order, Order], float], expected: float | str) -> None:
        cells = [format(figure(one, other), form) for one, other in epochs]
        wanted = expected if isinstance(expected, str) else format(expected, form)
        print(f"| {what} | {' | '.join(cells)} | {wanted} |", flush=True)

    count = np.arange(images // BATCH * BATCH)
    # Containers stay whole, so the order of a shuffled data set varies as that of so many things.
    deviation = f"0 ± {1 / math.sqrt(len(stored[0].counts)):.4f}"
    print(f"{images:,} images of {options.classes:,} classes, {of_container} in a container, {options.lanes} lanes\n")
    print("| batches of 256, an epoch | converted | transpose | uniform | expected |\n|---|---|---|---|---|")
    line("classes in a batch", ".1f", lambda a, _: distinct(a.inputs // of_class), expected_distinct(images, of_class))
    line("containers in a batch", ".1f", lambda a, _: distinct(a.containers), expected_distinct(images, of_container))
    line("neighbours of one class, %", ".3f", lambda a, _: same_class(a, of_class), (of_class - 1) / (images - 1) * 100)
    line("longest run of one class", ".1f", lambda a, _: longest(a.inputs // of_class), expected_run(images, of_class))
    line("correlation with the stored order", "+.4f", lambda a, _: np.corrcoef(count, a.places)[0, 1], deviation)
    line("correlation with the input", "+.4f", lambda a, _: np.corrcoef(count, a.inputs)[0, 1], deviation)
    line("distance of neighbours in stored order", ".4f", apart, 1 / 3)
    line("move from epoch to epoch", ".4f", moved, 1 / 3)
    line("mates of the batch met again in the next epoch's", ".3f", mates_again, (BATCH - 1) ** 2 / (images - 1))


if __name__ == "__main__":
    main()
