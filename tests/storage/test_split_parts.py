"""Splits: disjoint parts of the wanted sizes, which stay when a data set grows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import picstore_command
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.storage.split_parts import assign_parts, split_bounds

Make = Callable[..., Path]


@given(
    ids=st.sets(st.integers(0, 2**62), min_size=1, max_size=300),
    appended=st.integers(0, 100),
    seed=st.integers(0, 2**64 - 1),
)
def test_appending_moves_no_record_to_another_part(ids: set[int], appended: int, seed: int) -> None:
    later = max(ids) + 1 + np.arange(appended)
    earlier = np.random.default_rng(seed).permutation(np.array(sorted(ids)))
    grown = np.concatenate([earlier, later])
    bounds = split_bounds((0.7, 0.2))
    for values in (None, grown % 7):
        before = assign_parts(earlier, bounds, seed=seed, values=None if values is None else values[: len(earlier)])
        assert assign_parts(grown, bounds, seed=seed, values=values)[: len(earlier)].tolist() == before.tolist()


def test_parts_by_label_have_their_fraction_of_each_label() -> None:
    ids = np.random.default_rng(0).permutation(100_000)
    labels = np.minimum(ids % 1000, 99)
    for fraction in (0.9, 0.5, 0.013):
        parts = assign_parts(ids, split_bounds((fraction,)), seed=3, values=labels)
        for label, count in Counter(labels.tolist()).items():
            assert abs(int((parts[labels == label] == 0).sum()) - fraction * count) < (3 if count <= 1000 else 5)


def test_parts_by_hash_have_the_sizes_of_independent_draws() -> None:
    ids = np.arange(200_000)
    parts = [assign_parts(ids, split_bounds((0.8, 0.1)), seed=seed) for seed in (0, 1)]
    for each in parts:
        for part, fraction in enumerate((0.8, 0.1, 0.1)):
            deviation = math.sqrt(len(ids) * fraction * (1 - fraction))
            assert abs(int((each == part).sum()) - fraction * len(ids)) < 4 * deviation
    both = int(((parts[0] > 0) & (parts[1] > 0)).sum())
    assert abs(both - 0.04 * len(ids)) < 4 * math.sqrt(0.04 * len(ids))  # seeds are independent


@pytest.mark.parametrize("by", [None, "label"])
def test_parts_are_disjoint_sets_of_all_records_in_a_shuffled_copy_too(
    make_dataset: Make, tmp_path: Path, by: str | None
) -> None:
    dataset = picstore.Dataset(make_dataset())
    parts = dataset.split(0.6, 0.2, seed=1, by=by)
    assert len(parts) == 3
    ids = [set(part.ids.tolist()) for part in parts]
    assert [len(part) for part in parts] == [len(each) for each in ids]
    assert sum(map(len, ids)) == 50 and set.union(*ids) == set(range(50))
    assert all(ids)
    shuffle(dataset, tmp_path / "copy", seed=0, method="transpose", workers=1)
    of_copy = picstore.Dataset(tmp_path / "copy").split(0.6, 0.2, seed=1, by=by)
    assert [set(part.ids.tolist()) for part in of_copy] == ids
    if by is None:
        without = [id_ for id_ in range(50) if id_ not in (3, 4)]
        left = dataset.without([3, 4]).split(0.6, 0.2, seed=1)
        assert [set(part.ids.tolist()) for part in left] == [each & set(without) for each in ids]


def test_appending_to_a_data_set_moves_no_record_to_another_part(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(30)
    before = [set(part.ids.tolist()) for part in picstore.Dataset(path).split(0.5, by="label")]
    folder = tmp_path / "new" / "class1"
    folder.mkdir(parents=True)
    for number, record in enumerate(picstore.Dataset(path)[:10]):
        (folder / f"{number}.jpg").write_bytes(record.jpeg)
    picstore_command("convert", tmp_path / "new", path, "--append", "--workers", 1)
    grown = picstore.Dataset(path)
    assert len(grown) == 40
    for part, ids in zip(grown.split(0.5, by="label"), before, strict=True):
        assert {id_ for id_ in part.ids.tolist() if id_ < 30} == ids


@pytest.mark.parametrize("fractions", [(), (0.0,), (-0.1,), (1.5,), (0.6, 0.6), (math.nan,), ({"a": 0.5},), ("0.5",)])
def test_fractions_that_make_no_parts_are_refused(fractions: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="fractions"):
        split_bounds(fractions)


def test_fractions_with_a_sum_of_one_leave_no_rest() -> None:
    assert len(split_bounds((0.7, 0.2, 0.1))) == 2
    assert len(split_bounds((1.0,))) == 0


def test_splitting_by_what_has_no_values_to_keep_apart_is_refused(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(10))
    dataset = dataset.with_columns({"score": dataset.ids * 0.5})
    for by in ("score", "nothing"):
        with pytest.raises(UsageError, match="column"):
            dataset.split(0.5, by=by)


def test_fractions_that_add_up_to_one_leave_no_rest_and_more_are_refused() -> None:
    assert len(split_bounds((0.5, 0.5 - 1e-8))) == 2
    assert len(split_bounds((0.5, 0.5 - 1e-10))) == len(split_bounds((0.5, 0.5 + 1e-10))) == 1
    with pytest.raises(UsageError, match="a sum of 1"):
        split_bounds((0.5, 0.5 + 1e-8))


def test_a_data_set_has_at_most_a_hundred_parts() -> None:
    bounds = split_bounds((0.01,) * 98 + (0.001,))
    assert np.allclose(bounds, [*np.arange(1, 99) / 100, 0.981])
    assert np.unique(assign_parts(np.arange(20_000), bounds, seed=0)).tolist() == list(range(100))
    with pytest.raises(UsageError, match="1 to 99 numbers"):
        split_bounds((0.001,) * 100)


def test_values_are_texts_or_integers_in_one_dimension() -> None:
    bounds = split_bounds((0.5,))
    for values in (np.zeros((3, 1), np.int64), np.zeros(3), np.zeros(3, np.bool_)):
        with pytest.raises(UsageError, match="a column of integers or texts"):
            assign_parts(np.arange(3), bounds, seed=0, values=values)
    for good in (["a", "b", "a"], np.array([1, 2, 1], np.uint8)):
        assert len(assign_parts(np.arange(3), bounds, seed=0, values=good)) == 3
