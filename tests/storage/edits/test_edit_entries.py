"""Files of edits: arrays with a size and a checksum, and columns in memory as what a dictionary would say."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore.errors import Corrupt, Damage, UsageError
from picstore.storage.edits.columns import Column, make_column, read_column
from picstore.storage.edits.edit_entries import (
    ColumnEntry,
    Edits,
    NpyFile,
    pack_npy_file,
    parse_npy_file,
    read_npy_file,
    write_npy_file,
)
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.local import Folder

IDS = st.lists(st.integers(-5, 60), unique=True, max_size=12)


@pytest.mark.parametrize("dtype", ["<i8", "<f2", "<f4", "<f8", "|u1"])
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 5), (1, 2, 3)])
def test_an_array_comes_back_from_a_file_that_numpy_reads(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    entry, raw = pack_npy_file(array)
    assert entry == NpyFile(f"edits/{hashlib.sha256(raw).hexdigest()[:16]}.npy", len(raw), crc32c(raw))
    root = Folder(tmp_path)
    for _ in range(2):
        write_npy_file(root, entry, raw)
        for found in (parse_npy_file(raw, file=""), read_npy_file(root, entry), np.load(io.BytesIO(raw))):
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)
    (tmp_path / entry.file).write_bytes(raw[:-1] or b"")
    with pytest.raises(Damage, match=f"{len(raw) - 1} of {len(raw)} bytes"):
        read_npy_file(root, entry)
    write_npy_file(root, entry, raw)  # one of another size is written again
    assert (tmp_path / entry.file).read_bytes() == raw


def test_headers_of_other_forms_than_picstore_writes_are_corrupt() -> None:
    _, raw = pack_npy_file(np.arange(6).reshape(2, 3))
    long = raw[:8] + (4090).to_bytes(2, "little") + raw[10:128].ljust(4090) + raw[128:]
    for old, new in (
        (b"\x93NUMPY\x01", b"\x93NUMPY\x02"), (b"<i8", b"<i4"), (b"<i8", b"<u8"), (b"False", b"True "),
        (b"(2, 3)", b"(2, 4)"), (b"(2, 3)", b"(3, 3)"), (b"(2, 3)", b"(-2,3)"),
    ):  # fmt: skip
        assert old in raw
        with pytest.raises(Corrupt):
            parse_npy_file(raw.replace(old, new), file="")
    for cut in (raw[:-1], raw + b"\0", raw[:9], raw[:40], long.replace(b"NUMPY", b"NUMPI")):
        with pytest.raises(Corrupt):
            parse_npy_file(cut, file="")
    assert parse_npy_file(long[: 10 + 4090] + raw[128:], file="").tolist() == [[0, 1, 2], [3, 4, 5]]


def made(name: str, ids: list[int], values: Any) -> Column:
    entry, files = make_column(name, np.array(ids, np.int64), values)
    return read_column(entry, lambda each: parse_npy_file(files[each.file], file=each.file))


@given(ids=IDS, asked=IDS, more=IDS)
def test_a_column_is_a_dictionary_of_ids(ids: list[int], asked: list[int], more: list[int]) -> None:
    numbers, texts = {id_: 3 * id_ for id_ in ids}, {id_: f"ä{id_}" * (id_ % 3) for id_ in ids}
    wanted, others = np.array(asked, np.int64), np.array(more, np.int64)
    present = [id_ for id_ in asked if id_ in numbers]
    column = made("n", ids, np.array([*numbers.values()], np.int64))
    assert column.take(wanted).tolist() == [numbers.get(id_, -1) for id_ in asked]
    assert [each.tolist() for each in column.of(wanted)] == [present, [numbers[id_] for id_ in present]]
    assert [column.get(id_) for id_ in asked] == [numbers.get(id_) for id_ in asked]
    joined = dict(zip(*(each.tolist() for each in column.joined(others, np.array(more, np.int64))), strict=True))
    assert joined == numbers | dict(zip(more, more, strict=True))
    if ids:
        words = made("t", ids, [*texts.values()])
        assert words.take(wanted) == [texts.get(id_) for id_ in asked]
        found, values = words.of(wanted)
        assert (found.tolist(), values) == (present, [texts[id_] for id_ in present])
        assert [words.get(id_) for id_ in asked] == [texts.get(id_) for id_ in asked]
        assert words.missing_values(2) == [None, None]


def test_missing_numbers_are_minus_one_and_missing_floats_nan() -> None:
    vectors = made("v", [5, 2], np.arange(6, dtype=np.float32).reshape(2, 3))
    taken = vectors.take(np.array([2, 3, 5]))
    np.testing.assert_array_equal(taken, np.array([[3, 4, 5], [np.nan] * 3, [0, 1, 2]], np.float32))
    assert vectors.get(5).tolist() == [0, 1, 2] and vectors.get(3) is None
    with pytest.raises(UsageError, match="shape"):
        vectors.joined(np.array([9]), np.zeros((1, 4)))


@pytest.mark.parametrize(
    ("name", "values", "dtype"),
    [
        ("a", [True, False], "<i8"), ("a", np.array([1, 2], np.uint8), "<i8"), ("a", [0.5, 1], "<f8"),
        ("a", np.array([1, 2], np.float16), "<f2"), ("label", [1, 2], "<i8"),
        ("a", np.array([0, (1 << 63) - 1], np.uint64), "<i8"), ("a", [[1, 2], [3, 4]], "<i8"),
    ],
)  # fmt: skip
def test_numbers_are_kept_as_64_bit_integers_or_floats_of_their_width(name: str, values: Any, dtype: str) -> None:
    column = made(name, [4, 1], values)
    assert column.values.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(column.values, np.asarray(values)[::-1])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("1a", [1, 2]), ("a", [1]), ("a", [1, 2, 3]), ("label", ["a", "b"]), ("label", [0.5, 1]),
        ("label", [[1], [2]]), ("a", np.array([0, 1 << 63], np.uint64)), ("a", [1j, 2]), ("a", [[1], [1, 2]]),
        ("a", np.zeros(2, np.longdouble)), ("a", ["\udc00", "b"]),
    ],
)  # fmt: skip
def test_what_makes_no_column_is_wrong_usage(name: str, values: Any) -> None:
    with pytest.raises(UsageError):
        made(name, [4, 1], values)


def test_files_that_do_not_belong_together_are_corrupt() -> None:
    ids, ends, text = np.array([1, 4]), np.array([2, 5]), np.frombuffer(b"abcde", np.uint8)
    numbers = np.array([7, 8])
    sound = [
        ("numbers", "a", ids, numbers, None),
        ("text", "a", ids, text, ends),
        ("numbers", "label", ids, numbers, None),
    ]
    sound += [("text", "a", ids, text, np.array([0, 5])), ("numbers", "a", ids, numbers / 2, None)]
    sound += [("text", "a", ids[:0], text[:0], ends[:0])]
    wrong = [
        ("text", "a", ids, numbers, None),
        ("numbers", "a", ids[::-1], numbers, None),
        ("numbers", "a", ids, text, ends),
    ]
    wrong += [("numbers", "a", np.array([1, 1]), numbers, None), ("numbers", "a", ids, numbers[:1], None)]
    wrong += [("numbers", "a", ids[:, None], numbers, None), ("numbers", "a", ids / 2, numbers, None)]
    wrong += [("numbers", "a", ids, np.array([1, 2], np.uint8), None), ("numbers", "label", ids, numbers / 2, None)]
    wrong += [("numbers", "label", ids, numbers[:, None], None), ("text", "label", ids, text, ends)]
    wrong += [("text", "a", ids, text, ends[:1]), ("text", "a", ids, text, np.array([2, 4]))]
    wrong += [("text", "a", ids, text, np.array([6, 5])), ("text", "a", ids, text, np.array([-1, 5]))]
    wrong += [
        ("text", "a", ids, numbers, ends),
        ("text", "a", ids, text[None], ends),
        ("text", "a", ids, text, ends / 1),
    ]
    for expected, cases in ((True, sound), (False, wrong)):
        for kind, name, *arrays in cases:
            by_name = {str(k): array for k, array in enumerate(arrays) if array is not None}
            files = [NpyFile(each, 0, 0) for each in by_name]
            entry = ColumnEntry(name, kind, *files)
            try:
                read_column(entry, lambda each, held=by_name: held[each.file])
            except Corrupt:
                assert not expected, (kind, name, arrays)
            else:
                assert expected, (kind, name, arrays)


def test_edits_name_their_files() -> None:
    files = [NpyFile(str(k), k, k) for k in range(6)]
    columns = (ColumnEntry("a", "text", *files[1:4]), ColumnEntry("b", "numbers", *files[4:]))
    assert Edits(tombstones=files[0], columns=columns).npy_files == files
    assert Edits(columns=columns).npy_files == files[1:]
    assert (Edits().deleted, Edits().npy_files) == (0, [])
