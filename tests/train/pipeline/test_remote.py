"""engine="ray": the batches of a local loader from remote workers, whatever becomes of these.

Without a cluster; test_remote_cluster.py has clusters.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from inline_ray import Actor, InlineRay, RayError

import picstore
from picstore.errors import Corrupt, PicstoreError, UsageError
from picstore.prepare.engine import ray as engine
from picstore.train.batch import Batch
from picstore.train.pipeline import remote

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()]
OPTIONS: dict[str, Any] = {"batch_size": 8, "transform": CROP, "lanes": 4, "seed": 5}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineRay]:
    """A cluster in this process; its workers end after the test."""
    made = InlineRay()
    for module in (engine, remote):
        monkeypatch.setattr(module, "import_ray", lambda *_: made)
    yield made
    for actor in made.living:
        made.kill(actor)


def remote_loader(path: Path, *, workers: int = 3, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, engine="ray", workers=workers, **{**OPTIONS, **options})


def local_loader(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, isolate=False, threads=2, **{**OPTIONS, **options})


def same(one: Batch, other: Batch) -> bool:
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.ids, other.ids)
    )


def take(loader: picstore.Loader, epochs: int) -> list[Batch]:
    return [batch for _ in range(epochs) for batch in loader]


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others) > 0
    assert all(same(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_of_two_epochs_are_those_of_a_local_loader(
    make_dataset: Make, cluster: InlineRay, workers: int
) -> None:
    path = make_dataset(100)
    loader = remote_loader(path, workers=workers)
    assert_same(take(loader, 2), take(local_loader(path), 2))
    assert len(cluster.actors) == workers
    assert all(options["num_cpus"] == 1 for options in cluster.options)
    loader.close()
    assert not cluster.living
