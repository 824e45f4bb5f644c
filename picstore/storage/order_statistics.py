"""Statistics of the stored order: how well a data set is shuffled, measured on its records, not its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from picstore.arrays import Table
from picstore.storage.dataset import Dataset

_SAMPLED_CONTAINERS = 1000  # takes 1 to 2 s over a network; sampling moves the figures in the third digit


@dataclass(frozen=True, slots=True)
class OrderStatistics:
    """Figures of the stored order.

    Attributes:
        records: number of records measured: all, or the records of 1,000 evenly spaced containers.
        correlation: of id and stored position by rank (Spearman): 1 in input order, about 0 ± 1/√records when shuffled.
        same_class_neighbours: fraction of neighbors in a container that have the same label.
        expected_same_class_neighbours: that fraction in a uniformly random order.
    """

    records: int
    correlation: float
    same_class_neighbours: float
    expected_same_class_neighbours: float


def sample_indexes(dataset: Dataset) -> list[Table]:
    """Read the index entries of all containers, or of 1,000 evenly spaced ones.

    Raises:
        Damage, NotADataset: one is unreadable.
    """
    count = len(dataset.rows)
    chosen = {k * count // min(count, _SAMPLED_CONTAINERS) for k in range(min(count, _SAMPLED_CONTAINERS))}
    return [dataset.entries(number) for number in sorted(chosen)]


def order_statistics(indexes: Sequence[Table]) -> OrderStatistics | None:
    """Measure the stored order in index entries of containers; None for fewer than two records."""
    if sum(map(len, indexes)) < 2:
        return None
    ids = np.concatenate([index["id"] for index in indexes])
    labels = np.concatenate([index["label"] for index in indexes])
    ranks = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])
    neighbors = sum(max(0, len(index) - 1) for index in indexes)
    same = sum(int((index["label"][1:] == index["label"][:-1]).sum()) for index in indexes)
    _, per_class = np.unique(labels, return_counts=True)
    n = len(labels)
    expected = float((per_class * (per_class - 1.0)).sum() / (n * (n - 1.0)))
    return OrderStatistics(n, correlation, same / neighbors if neighbors else 0.0, expected)
