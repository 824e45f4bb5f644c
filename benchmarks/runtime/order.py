"""Randomness of an epoch's order: figures of the real plan over data sets stored in three ways.

The input is sorted by class. ``converted`` is a data set as convert writes it, ``transpose`` and ``uniform`` as shuffle
writes it; the position of each image follows from the same draws, without any image. Beside each figure stands a
uniformly random order's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import Row, Table
from benchmarks.options import Options
from picstore import rng
from picstore.arrays import I64
from picstore.prepare.convert.row_division import DatasetShape, count_rows, row_slice
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard

CLASSES, IMAGE_BYTES = 1000, 110_000
Files = dict[tuple[int, int], I64]  # by stream and file, input numbers in the order of the file
SEED, BATCH = 0, 256


@dataclass(frozen=True)
class Stored:
    """Records in each container, and the input number of each record, both in stored order."""

    counts: I64
    inputs: I64


@dataclass(frozen=True)
class Order:
    """Samples of an epoch: number in the input, number in stored order, container."""

    inputs: I64
    positions: I64
    containers: I64


def convert(images: int, image_bytes: int, shape: DatasetShape) -> Files:
    """Deal each row's groups of inputs to the streams."""
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
    """Permute each file and swap stream and file."""
    return {
        (file, stream): ids[rng.permutation(rng.key(rng.SHUFFLE, SEED, stream, file), len(ids))]
        for (stream, file), ids in files.items()
    }


def uniform(files: Files) -> Files:
    """Draw a file for each record and permute each file."""
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
    ids = [chunk for *_, chunk in containers]
    return Stored(np.array([len(chunk) for chunk in ids]), np.concatenate(ids))


def run_epoch(stored: Stored, epoch: int, lanes: int) -> Order:
    """The samples of an epoch, batch by batch, by the loader's plan."""
    shard = RankShard(records=len(stored.inputs), lanes=lanes, batch=BATCH)
    order = EpochOrder(stored.counts, seed=SEED, epoch=epoch, lanes=lanes)
    starts = np.cumsum(stored.counts) - stored.counts
    batches = [order.locate(shard.samples(k)) for k in range(shard.batches)]
    containers = np.concatenate([samples.container for samples in batches])
    positions = starts[containers] + np.concatenate([samples.record for samples in batches])
    return Order(stored.inputs[positions], positions, containers)


def distinct(values: I64) -> float:
    """Different values in a batch, on average."""
    batches = np.sort(values.reshape(-1, BATCH), axis=1)
    return float(1 + (np.diff(batches, axis=1) != 0).sum(axis=1).mean())


def same_class(order: Order, of_class: int) -> float:
    """Samples of an epoch whose successor has their class, in percent."""
    return float((np.diff(order.inputs // of_class) == 0).mean() * 100)


def apart(order: Order, _: Order) -> float:
    """How far apart two successive samples are stored, as a part of the data set, on average."""
    return float(np.abs(np.diff(order.positions)).mean() / len(order.positions))


def mates_again(one: Order, other: Order) -> float:
    """With how many images of its batch an image shares a batch in another epoch too, on average."""
    batch = np.full(int(max(one.positions.max(), other.positions.max())) + 1, -1)
    batch[other.positions] = np.arange(len(other.positions)) // BATCH
    pairs = 0
    for mates in batch[one.positions].reshape(-1, BATCH):
        _, counts = np.unique(mates[mates >= 0], return_counts=True)
        pairs += int((counts * (counts - 1)).sum())
    return pairs / len(one.positions)


def expected_distinct(total: int, of_each: float) -> float:
    """Different values in a batch of a uniform order in which each value comes ``of_each`` times."""
    log_none = sum(math.log1p(-of_each / (total - k)) for k in range(BATCH))
    return total / of_each * -math.expm1(log_none)


def order(options: Options) -> Table:
    """Figures of two epochs of 1,280,000 images, by storage and by number of lanes."""
    images = options.images or (40_000 if options.quick else 1_280_000)
    shape = DatasetShape()
    files = convert(images, IMAGE_BYTES, shape)
    per_container = shape.container_size // IMAGE_BYTES
    stored = [store(kind, per_container) for kind in (files, transpose(files), uniform(files))]
    rows = [row for lanes in (32, 256) for row in _rows(stored, images, per_container, lanes)]
    return Table(f"{images:,} images of {CLASSES:,} classes, {per_container} in a container, batches of {BATCH}", rows)


def _rows(stored: list[Stored], images: int, per_container: int, lanes: int) -> list[Row]:
    epochs = [[run_epoch(each, epoch, lanes) for epoch in (0, 1)] for each in stored]
    per_class, count = images // CLASSES, np.arange(images // BATCH * BATCH)
    # Containers stay whole, so the order of a shuffled data set varies as an order of containers does.
    deviation = f"0 ± {1 / math.sqrt(len(stored[0].counts)):.4f}"
    figures: list[tuple[str, str, Callable[[Order, Order], float], float | str]] = [
        (
            "classes in a batch",
            ".1f",
            lambda a, _: distinct(a.inputs // per_class),
            expected_distinct(images, per_class),
        ),
        ("containers in a batch", ".1f", lambda a, _: distinct(a.containers), expected_distinct(images, per_container)),
        (
            "neighbors of one class, %",
            ".3f",
            lambda a, _: same_class(a, per_class),
            (per_class - 1) / (images - 1) * 100,
        ),
        ("correlation with the stored order", "+.4f", lambda a, _: _correlation(count, a.positions), deviation),
        ("correlation with the input", "+.4f", lambda a, _: _correlation(count, a.inputs), deviation),
        ("distance of neighbors in stored order, of the data set", ".4f", apart, 1 / 3),
        ("mates of the batch met again in the next epoch's", ".3f", mates_again, (BATCH - 1) ** 2 / (images - 1)),
    ]
    rows = []
    for name, text_format, figure, expected in figures:
        cells = [format(figure(one, other), text_format) for one, other in epochs]
        wanted = expected if isinstance(expected, str) else format(expected, text_format)
        names = dict(zip(("converted", "transpose", "uniform"), cells, strict=True))
        rows.append({"lanes": lanes, "figure": name, **names, "random": wanted})
    return rows


def _correlation(one: I64, other: I64) -> float:
    return float(np.corrcoef(one, other)[0, 1])
