"""Batch: its fields by name, torch's pytree, other devices, and libraries that move batches."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pictures import require
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(24)]


def first_batch(path: Path | picstore.Dataset, **options: Any) -> picstore.Batch:
    loader = picstore.Loader(path, **{"batch_size": 6, "transform": CROP, "isolate": False, **options})
    batch = next(iter(loader))
    loader.close()
    return batch


@pytest.fixture
def full(make_dataset: Make) -> picstore.Batch:
    """A batch with boxes and columns."""
    path = make_dataset(12)
    dataset = picstore.Dataset(path).with_columns({"caption": ["a"] * 12, "score": [0.5] * 12})
    return first_batch(dataset, targets=["boxes", "caption", "score"])


def test_asdict_has_the_fields_that_there_are(make_dataset: Make, full: picstore.Batch) -> None:
    plain = first_batch(make_dataset(12, name="plain"))
    assert list(plain.asdict()) == ["images", "labels", "ids"]
    assert list(full.asdict()) == ["images", "labels", "ids", "targets", "columns"]
    assert all(value is getattr(full, name) for name, value in full.asdict().items())


def test_tree_map_reaches_every_tensor_and_makes_a_batch(full: picstore.Batch) -> None:
    leaves = pytree.tree_leaves(full)
    assert (
        sum(isinstance(leaf, torch.Tensor) for leaf in leaves) == 3 + 3 * 6 + 1 + 1
    )  # boxes, labels, index; score; weight
    doubled = pytree.tree_map_only(torch.Tensor, lambda tensor: 2 * tensor, full)
    assert type(doubled) is picstore.Batch and doubled.columns["caption"] == full.columns["caption"]
    assert torch.equal(doubled.images, 2 * full.images) and torch.equal(doubled.ids, 2 * full.ids)
    assert torch.equal(doubled.columns["score"], 2 * full.columns["score"])
    paths = [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(full)]
    assert paths[:3] == [".images", ".labels", ".ids"] and ".columns['score']" in paths


def test_a_batch_without_targets_survives_flattening(make_dataset: Make) -> None:
    batch = first_batch(make_dataset(12))
    leaves, spec = pytree.tree_flatten(batch)
    again = pytree.tree_unflatten(leaves, spec)
    assert torch.equal(again.images, batch.images) and again.targets is None and again.columns == {}


def test_accelerate_moves_gathers_and_measures_a_batch(make_dataset: Make) -> None:
    require(importlib.util.find_spec("accelerate"), "accelerate")
    from accelerate.utils import find_batch_size, send_to_device

    batch = first_batch(make_dataset(12))
    moved = send_to_device(batch, torch.device("meta"))
    assert type(moved) is picstore.Batch and moved.images.device.type == moved.labels.device.type == "meta"
    assert find_batch_size(batch.asdict()) == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:.*LeafSpec.* is deprecated")
def test_lightning_moves_a_batch(make_dataset: Make) -> None:
    require(importlib.util.find_spec("lightning"), "lightning")
    from lightning.fabric.utilities import move_data_to_device

    moved = move_data_to_device(first_batch(make_dataset(12)), torch.device("meta"))
    assert type(moved) is picstore.Batch and moved.images.device.type == "meta"


@pytest.mark.slow
def test_a_dataloader_hands_batches_on_as_they_are(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(12), batch_size=6, transform=CROP, isolate=False)
    assert all(type(batch) is picstore.Batch for batch in DataLoader(loader, batch_size=None))
    loader.close()


def test_a_batch_is_indexed_as_a_pair_and_by_the_names_of_its_fields(full: picstore.Batch) -> None:
    pair = (full.images, full.labels)
    images, labels = full
    assert (images, labels) == tuple(full) == pair and len(full) == 2
    for index in (0, 1, -1, -2, np.int64(-1), torch.tensor(1)):
        assert full[index] is pair[index]
    for part in (slice(1), slice(1, None), slice(15), slice(None, None, -1), slice(-1, None)):
        assert full[part] == pair[part]
    assert full["ids"] is full.ids
    for key, error in ((2, IndexError), (-3, IndexError), ("pixels", KeyError)):
        with pytest.raises(error, match=r"batch\[0\] is its images, batch\[1\] its labels"):
            full[key]


def test_loops_that_take_a_batch_for_a_tuple_find_inputs_and_targets(full: picstore.Batch) -> None:
    # ConvNeXt's evaluate, and the rule by which fastai's Learner divides a batch.
    assert full[0] is full.images and full[-1] is full.labels
    inputs = len(full) - 1
    assert full[:inputs] == (full.images,) and full[inputs:] == (full.labels,)
    assert next(reversed(full)) is full.labels and [*full, full.ids] == [full.images, full.labels, full.ids]


@pytest.mark.slow
def test_a_dataloader_of_tuples_yields_pairs(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(12), batch_size=6, transform=CROP, isolate=False)
    assert all(type(batch) is tuple for batch in DataLoader(loader, batch_size=None, collate_fn=tuple))
    loader.close()


def test_a_dataloader_of_records_says_what_to_write(make_dataset: Make) -> None:
    with pytest.raises(UsageError, match=r"write picstore\.Loader\(dataset, .*picstore\.MapDataset\(dataset\)"):
        next(iter(DataLoader(picstore.Dataset(make_dataset(4)), batch_size=2)))


def test_a_printed_loader_tells_its_batches(make_dataset: Make) -> None:
    path = make_dataset(20)
    assert str(picstore.Loader(path, batch_size=8)) == f"Loader({path}, 20 images, uint8, cpu, 2 batches of 8)"
    mux = picstore.DataMux([(picstore.Dataset(path), 0, 4)])
    assert str(mux) == f"DataMux({path}, 20 images, uint8, cpu)"


def test_a_slice_of_views_says_how_to_write_it(make_dataset: Make) -> None:
    transform = picstore.Views(big=(2, [picstore.RandomResizedCrop(16)]), small=(1, [picstore.RandomResizedCrop(8)]))
    batch = first_batch(make_dataset(8), batch_size=4, transform=transform)
    images, _ = batch
    for key in (slice(2), 0, "large"):
        with pytest.raises(
            KeyError, match=r"not a group of these views, which are big, small; .* images\['big'\]\[:, :2\]"
        ):
            images[key]
    assert images["big"][:, :2].shape == (2, 2, 3, 16, 16) and images.get("large") is None
    moved = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.float(), batch)
    assert type(moved.images) is type(batch.to("cpu").images) is type(images)
    assert moved.images["small"].dtype == torch.float32
    assert list(copy.deepcopy(images)) == list(pickle.loads(pickle.dumps(images))) == ["big", "small"]  # noqa: S301
