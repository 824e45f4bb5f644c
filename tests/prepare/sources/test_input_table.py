"""The table of inputs: a sequence whose blocks are in a file."""

from __future__ import annotations

import pickle
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from samples import jpeg

import picstore
from picstore.errors import PicstoreError
from picstore.prepare.sources import input_table
from picstore.prepare.sources.input_table import BLOCK, InputTable, InputView
from picstore.prepare.sources.inputs import Input, read_input

texts = st.text(max_size=8)  # surrogates too, of names that are not UTF-8
bare = st.builds(
    Input,
    name=texts,
    label=st.integers(-1, 1 << 62),
    path=texts,
    offset=st.integers(0, 1 << 60),
    size=st.integers(-1, 1 << 30),
    problem=texts,
    extra=st.binary(max_size=8),
    annotated=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
    reader=st.sampled_from((None, read_input, len)),
    key=st.binary(max_size=8),
    crc=st.none() | st.integers(0, (1 << 32) - 1),
    upright=st.booleans(),
)
inputs_of_all_kinds = st.builds(
    lambda one, others: replace(one, attachments=tuple(others)), bare, st.lists(st.tuples(texts, bare), max_size=2)
)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_table, "BLOCK", 3)


def one(number: int, **fields: Any) -> Input:
    return Input(f"class/{number}.jpg", number, f"/photographs/class/{number}.jpg", **fields)


@given(st.lists(inputs_of_all_kinds, max_size=10), st.data())
@examples(60)
def test_it_holds_what_a_list_holds(inputs: list[Input], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_table, "BLOCK", 3)
        table = InputTable(inputs)
        assert len(table) == len(inputs) and list(table) == inputs
        for k in data.draw(st.lists(st.integers(-len(inputs), len(inputs) - 1), max_size=5)) if inputs else ():
            assert table[k] == inputs[k]
        some, inner = data.draw(st.slices(len(inputs))), data.draw(st.slices(5))
        assert list(table[some]) == inputs[some]
        assert list(table[some][inner]) == inputs[some][inner]
        for sequence, same in ((table, inputs), (table[some], inputs[some])):
            assert pickle.loads(pickle.dumps(sequence)) == same  # noqa: S301 - as tasks of processes are
        for k in (len(inputs), -len(inputs) - 1):
            with pytest.raises(IndexError):
                table[k]


def test_inputs_can_be_added_after_some_were_read(small_blocks: None) -> None:
    table = InputTable()
    for number in range(20):
        table.append(one(number))
        assert [each.label for each in table] == list(range(number + 1))


def test_integers_of_numpy_are_integers(small_blocks: None) -> None:
    table = InputTable(replace(one(k), label=np.int64(k), offset=np.uint32(k), size=np.int16(k)) for k in range(7))
    assert list(table) == [one(k, offset=k, size=k) for k in range(7)]


def test_a_view_changes_inputs_as_they_are_read(small_blocks: None) -> None:
    view = InputView(InputTable(map(one, range(10))), change=lambda each: replace(each, label=each.label + 100))
    assert [each.label for each in view] == list(range(100, 110))
    assert [each.label for each in view[7:2:-2]] == [107, 105, 103]
    assert view[-1].label == 109


def test_labels_are_numbered_once_all_are_known(small_blocks: None) -> None:
    attachments = (("mask", Input("mask", -1, "mask.png")),)
    table = InputTable(one(k % 4, attachments=attachments) for k in range(10))
    assert table[0].label == 0  # from a block that is kept
    table.number_labels([30, 20, 10, -1])
    assert [each.label for each in table] == [(30, 20, 10, -1)[k % 4] for k in range(10)]
    assert all(each.attachments == attachments for each in table)


@given(st.lists(st.tuples(st.booleans(), st.lists(inputs_of_all_kinds, max_size=8)), max_size=4), st.data())
@examples(60)
def test_packed_inputs_keep_their_turn_readers_and_labels(
    parts: list[tuple[bool, list[Input]]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_table, "BLOCK", 3)
        patch.setattr(input_table, "_MOST_LABELS", 5)  # above which a run is sent as a list
        table, expected = InputTable(), []
        for packed, inputs in parts:
            numbered = [replace(one, label=k) for k, one in enumerate(inputs)]
            if packed and inputs:
                group = table.add_packed(InputTable(numbered).pack())
                table.number_labels([one.label for one in inputs], group=group)
                expected += inputs
            else:
                table.extend(inputs)
                expected += inputs
        assert len(table) == len(expected) and list(table) == expected
        begin = data.draw(st.integers(0, len(expected)))
        end = data.draw(st.integers(begin, len(expected)))
        sent = pickle.loads(pickle.dumps(table[begin:end]))  # noqa: S301 - as tasks of processes are
        assert sent == expected[begin:end]


def test_inputs_in_the_file_take_no_memory() -> None:
    tracemalloc.start()
    try:
        table = InputTable(one(number) for number in range(20 * BLOCK))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table) == 20 * BLOCK
    assert taken < 1 << 17  # 8 MB in a list


def test_a_disk_without_room_for_the_file_is_an_error_that_says_so(
    small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(PicstoreError, match=r"no room for the list of inputs: .*No space left.*; set TMPDIR"):
        InputTable(map(one, range(3)))


def test_a_conversion_of_inputs_in_a_file_makes_the_same_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        path = tmp_path / "photographs" / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    whole = picstore.convert(tmp_path / "photographs", tmp_path / "whole")
    monkeypatch.setattr(input_table, "BLOCK", 3)
    parts = picstore.convert(tmp_path / "photographs", tmp_path / "parts")
    assert parts.uuid == whole.uuid
