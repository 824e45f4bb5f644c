"""Requests for batches: which samples each holds, and how many bytes may be read ahead for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64
from picstore.storage.dataset import Dataset
from picstore.train.order.epoch import EpochOrder, Samples
from picstore.train.order.sharding import RankShard
from picstore.train.transforms.compose import TransformPlan

_LEAST_BUDGET = 64 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Source:
    """A data set as a loader or mux reads it; ``base`` is added to labels other than −1."""

    dataset: Dataset
    seed: int
    base: int = 0
    recipe: TransformPlan = field(default_factory=TransformPlan)


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of a batch that come from one epoch of one source, and their slots, int64 (n,)."""

    source: int
    epoch: int
    samples: Samples
    slots: I64


Request: TypeAlias = Sequence[Part]  # a batch


def make_requests(
    sources: Sequence[Source], *, share: RankShard, seed: int, epoch: int, first: int = 0, step: int = 0
) -> Iterator[Request]:
    """The requests of batches of the first source.

    Args:
        epoch, first: the first batch.
        step: of a DataLoader's worker, which makes every ``step``-th batch of one epoch; 0 for all batches of this
            epoch and those that follow.
    """
    dataset = sources[0].dataset
    while True:
        order = EpochOrder(dataset.live.counts, seed=seed, epoch=epoch, lanes=share.lanes, shuffle=share.shuffle)
        for batch in range(first, share.batches, max(1, step)):
            start, stop = share.bounds(batch)
            samples = find(order.locate(share.samples(start, stop)), dataset)
            yield [Part(0, epoch, samples, np.arange(stop - start))]
        if step:
            return
        epoch, first = epoch + 1, 0


def find(samples: Samples, dataset: Dataset) -> Samples:
    """Samples of an order over the records that are left, as records of their containers."""
    return replace(samples, record=dataset.live.to_record_numbers(samples.container, samples.record))


def default_budget(datasets: Sequence[Dataset], lanes: int) -> int:
    """Bytes that ``lanes`` read at a time if each is in a container of the largest size, and a quarter more."""
    largest = max(int(dataset.rows["size"].max(initial=0)) for dataset in datasets)
    return max(_LEAST_BUDGET, 5 * lanes * largest // 4)
