"""Comparing the batches of loaders."""

from __future__ import annotations

import torch

import picstore
from picstore.train.batch import Batch


def same(one: Batch, other: Batch) -> bool:
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.ids, other.ids)
    )


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others) > 0
    assert all(same(one, other) for one, other in zip(some, others, strict=True))


def take(loader: picstore.Loader, epochs: int) -> list[Batch]:
    return [batch for _ in range(epochs) for batch in loader]
