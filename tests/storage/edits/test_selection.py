"""Selections: a data set of some of the records, for every reader, without a byte written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import tree
from engine_tasks import InlineEngine
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.prepare.exports.run_export import export
from picstore.prepare.upkeep.shuffled_copy import METHODS, shuffle
from picstore.storage.edits.live_records import LiveRecords, SelectedRecords

Make = Callable[..., Path]
CHOSEN = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]  # of the first containers, and of the last


def loader_of(dataset: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    return picstore.Loader(dataset, **{"batch_size": 4, "threads": 2, "isolate": False, **options})


def ids_of(loader: picstore.Loader) -> list[int]:
    return [id_ for batch in loader for id_ in batch.ids.tolist()]


@given(data=st.data(), counts=st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_numbers_among_the_chosen_are_those_of_a_list_of_them(data: st.DataObject, counts: list[int]) -> None:
    total = sum(counts)
    marks = data.draw(st.lists(st.sampled_from(["deleted", "left out", "chosen"]), min_size=total, max_size=total))
    deleted = [number for number, mark in enumerate(marks) if mark == "deleted"]
    live = LiveRecords.from_deleted(counts, np.array(deleted, dtype=np.int64), file="here")
    among = np.array([mark == "chosen" for mark in marks if mark != "deleted"], dtype=np.bool_)
    selected = SelectedRecords.of(live, among)
    chosen = [number for number, mark in enumerate(marks) if mark == "chosen"]
    assert len(selected) == len(chosen)
    assert selected.numbers.tolist() == selected.to_stored(np.arange(len(chosen))).tolist() == chosen
    starts = np.concatenate(([0], np.cumsum(counts)))
    for container, count in enumerate(counts):
        records = [number - starts[container] for number in chosen if 0 <= number - starts[container] < count]
        assert selected.counts[container] == len(records)
        numbers = np.arange(len(records))
        assert selected.to_record_numbers(np.full(len(records), container), numbers).tolist() == records
        assert np.flatnonzero(selected.mask(container)).tolist() == records
        assert sorted([*records, *selected.deleted_in(container).tolist()]) == list(range(count))
    containers, within = selected.find(np.arange(len(chosen)))
    assert (starts[containers] + within).tolist() == chosen
    half = SelectedRecords.of(selected, np.arange(len(chosen)) % 2 == 0)
    assert half.numbers.tolist() == chosen[::2]


def test_a_mask_positions_and_ids_choose_the_same_records_in_stored_order(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    ids = dataset.ids
    mask = np.isin(ids, CHOSEN)
    positions = np.flatnonzero(mask)[::-1]
    selections = [dataset.select(mask), dataset.select(positions), dataset.select(ids=CHOSEN)]
    for selection in selections:
        assert selection.ids.tolist() == [id_ for id_ in ids.tolist() if id_ in CHOSEN]
        assert [record.id for record in selection] == [selection[k].id for k in range(15)] == selection.ids.tolist()
        assert len(selection) == 15
    assert len({selection.identity for selection in selections}) == 1
    assert selections[0].uuid == dataset.uuid == dataset.identity
    assert dataset.select(positions[1:]).identity != selections[0].identity
    of_selection = selections[0].select([0, -1])
    assert of_selection.ids.tolist() == selections[0].ids[[0, -1]].tolist()
    assert of_selection.without([int(of_selection.ids[0])]).ids.tolist() == of_selection.ids[1:].tolist()
    assert copy.deepcopy(of_selection).ids.tolist() == of_selection.ids.tolist()
    assert len(dataset) == 50


def test_a_selection_leaves_out_deleted_records(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset()).without([2, 47])
    selection = dataset.select(np.isin(dataset.ids, CHOSEN))
    assert set(selection.ids.tolist()) == set(CHOSEN) - {2, 47}
    with pytest.raises(UsageError, match="deleted"):
        dataset.select(ids=[2, 3])
    with pytest.raises(UsageError, match="not in the selection"):
        selection.select(ids=[1])


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_loader_yields_each_chosen_record_once_and_reads_no_other(make_dataset: Make, shuffled: bool) -> None:
    path = make_dataset(file_size=12 << 10)
    dataset = picstore.Dataset(path)
    selection = dataset.select(ids=CHOSEN[:3])
    needed = {
        selection.containers.container_ref(number).name for number in np.flatnonzero(selection.live.counts).tolist()
    }
    others = [file for file in path.rglob("*.pic") if file.relative_to(path).as_posix() not in needed]
    assert others
    for file in others:
        file.unlink()
    loader = loader_of(selection, shuffle=shuffled, batch_size=1, on_damage="raise")
    assert sorted(ids_of(loader)) == CHOSEN[:3]


def test_a_loaders_process_gets_the_selection_which_its_state_belongs_to(make_dataset: Make) -> None:
    path = make_dataset()
    selection = picstore.Dataset(path).select(ids=CHOSEN)
    with_process = loader_of(selection, isolate=True)
    epoch = ids_of(with_process)
    with_process.close()
    loader = loader_of(selection)
    taken = iter(loader)
    next(taken)
    state = loader.state_dict()
    other = loader_of(picstore.Dataset(path).select(np.isin(selection.containers.ids(), CHOSEN)))
    other.load_state_dict(state)
    assert ids_of(other) == epoch[4:]
    for wrong in (path, selection.select(np.arange(14))):
        with pytest.raises(UsageError, match="selection"):
            loader_of(wrong).load_state_dict(state)


def test_an_epoch_of_a_selection_is_the_same_at_any_world_size(make_dataset: Make) -> None:
    selection = picstore.Dataset(make_dataset()).select(ids=CHOSEN)
    whole = [set(batch.ids.tolist()) for batch in loader_of(selection, batch_size=6)]
    ranks = [loader_of(selection, batch_size=3, rank=rank, world_size=2) for rank in range(2)]
    halves = zip(*([batch.ids.tolist() for batch in loader] for loader in ranks), strict=True)
    assert [{*first, *second} for first, second in halves] == whole


@pytest.mark.parametrize("method", METHODS)
def test_a_shuffled_copy_of_a_selection_holds_its_records_and_columns(
    make_dataset: Make, tmp_path: Path, method: str
) -> None:
    path = make_dataset(file_size=12 << 10)
    before = tree(path)
    dataset = picstore.Dataset(path)
    dataset = dataset.with_columns({"score": dataset.ids * 0.5}).with_columns({"name": ["a", "b"]}, ids=[2, 4])
    selection = dataset.select(ids=CHOSEN)
    shuffle(selection, tmp_path / "copy", seed=1, method=method, workers=1)
    copied = picstore.Dataset(tmp_path / "copy")
    assert sorted(copied.ids.tolist()) == CHOSEN
    assert {record.id: record.jpeg for record in copied} == {record.id: record.jpeg for record in selection}
    assert copied.column("score").ids.tolist() == CHOSEN
    assert {record.id: record.columns.get("name") for record in copied}[2] == "a"
    assert copied.column("name").ids.tolist() == [2]
    assert copied.manifest.shuffle[-1]["selection"] == selection.live.digest
    assert len(copied.manifest.files) < len(dataset.manifest.files)
    assert len(copied.rows) < (selection.live.counts > 0).sum()  # which are as full as those of the data set
    assert tree(path) == before


def test_an_export_of_a_selection_holds_its_records(make_dataset: Make, tmp_path: Path) -> None:
    selection = picstore.Dataset(make_dataset()).select(ids=CHOSEN)
    assert export(selection, tmp_path / "out", format="folder", workers=InlineEngine(1)).images == len(CHOSEN)


def test_columns_of_a_selection_leave_the_values_of_other_records(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    dataset = dataset.with_columns({"score": dataset.ids})
    changed = dataset.select(ids=CHOSEN).with_columns({"score": np.full(15, -5)})
    assert changed.ids.tolist() == dataset.select(ids=CHOSEN).ids.tolist()
    assert changed.column("score").take(np.array([2, 4])).tolist() == [-5, 4]


def test_a_selection_is_not_saved(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(10))
    with pytest.raises(UsageError, match="cannot be saved"):
        dataset.select([1]).save()
    assert len(picstore.Dataset(dataset.path)) == 10


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (np.ones(9, dtype=np.bool_), "mask of shape"),
        ([10], "position 10"),
        ([-11], "position -11"),
        ([1, 1], "twice"),
        ([0.5], "integers"),
        ([[1]], "integers"),
        (None, "give one"),
    ],
)
def test_what_selects_no_set_of_records_is_refused(make_dataset: Make, chosen: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        picstore.Dataset(make_dataset(10)).select(chosen)


def test_ids_that_no_record_has_or_that_are_given_twice_are_refused(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(10))
    with pytest.raises(UsageError, match="no record with the id 10"):
        dataset.select(ids=[3, 10])
    with pytest.raises(UsageError, match="twice"):
        dataset.select(ids=[3, 3])
