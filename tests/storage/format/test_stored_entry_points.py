"""Entry points in containers: which images get them, where they lie, and readers that know nothing of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from tiled import noise

import picstore
from picstore.jpeg.transcode import add_restart_markers, find_entry_points
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.format import container_writer as packing
from picstore.storage.format import segment_table
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_writer import pack_container
from picstore.storage.format.layout import ENTRY_POINTS, ROW_CRCS, SAMPLINGS
from picstore.storage.format.read_container import unpack_container
from picstore.storage.format.record import Record
from picstore.storage.format.segment_table import count_entry_points, entries_of, entry_points
from picstore.storage.format.segment_table import find_entry_points as find_stored

REF = ContainerRef("0000/000000.pic", 4096)
LONG = {"grey": 136, "444": 136, "422": 176, "440": 136, "420": 176}  # pixels of a prime number of MCUs


def record(number: int, sampling: str = "420", **fields: Any) -> Record:
    """A record with one tile a row."""
    data = noise(number, width=LONG[sampling], height=40, sampling=sampling)
    return Record(**{"id": number, "label": 0, "jpeg": data, "info": parse_image_info(data), **fields})


def narrow(number: int) -> Record:
    data = noise(number, width=128, height=40)
    return Record(number, 0, data, parse_image_info(data))


def packed(records: list[Record]) -> bytes:
    return b"".join(map(bytes, pack_container(records, ref=REF)))


def reread(records: list[Record]) -> Container:
    return unpack_container(memoryview(packed(records)), ref=REF)


@pytest.mark.parametrize("sampling", SAMPLINGS[1:])
def test_long_segments_get_entry_points_that_are_bounded_exactly(sampling: str) -> None:
    each = record(1, sampling)
    entries = entry_points(each.jpeg, each.info)
    step = int(entries[0])
    points = find_entry_points(each.jpeg, step)
    assert points is not None and step == 64 * 11 // 176 if LONG[sampling] == 176 else step == 8
    assert entries[1:].tolist() == points.ravel().tolist() and len(points) == len(each.info.segments)
    assert count_entry_points(each.jpeg, each.info) == len(entries)


def test_entry_points_follow_lengths_and_checksums_as_the_format_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_table, "MIN_BYTES", 0)
    records = [record(1), narrow(2), record(3, "grey")]
    container = reread(records)
    assert not container.damage and container.index["flags"].tolist() == [
        ROW_CRCS | ENTRY_POINTS,
        ROW_CRCS,
        ROW_CRCS | ENTRY_POINTS,
    ]
    table, at = container.segments, 0
    for k, each in enumerate(records):
        rows = -(-40 // (8 if k == 2 else 16))
        entries = entry_points(each.jpeg, each.info)
        assert container.index["segment_first"][k] == at
        assert table[at : at + len(each.info.segments)].tolist() == each.info.segments.tolist()
        at += len(each.info.segments) + 2 * (1 + rows)
        assert table[at : at + len(entries)].tolist() == entries.tolist()
        at += len(entries)
        assert entries_of(container.index[k], table).stop == at
        known = container.info(k).entry_points
        assert (known is None) if k == 1 else (known is not None and known.tolist() == entries.tolist())
    assert at == len(table)


def test_images_of_ordinary_tiles_get_none_and_their_containers_stay_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    each = narrow(1)
    assert len(entry_points(each.jpeg, each.info)) == count_entry_points(each.jpeg, each.info) == 0
    block = packed([each])
    monkeypatch.setattr(packing, "entry_points", lambda jpeg, info: info.segments[:0])
    assert packed([each]) == block


def test_a_reader_that_ignores_the_flag_reads_the_same_records(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(1), narrow(2), record(3, "444")]
    block = packed(records)
    monkeypatch.setattr(segment_table, "ENTRY_POINTS", 0)
    container = unpack_container(memoryview(block), ref=REF)
    assert not container.damage and (container.index["flags"] != 0).tolist() == [True, False, True]
    for k, each in enumerate(records):
        assert container.record(k) == each and container.info(k).entry_points is None
        assert container.info(k).segments.tolist() == each.info.segments.tolist()


def test_known_entry_points_are_copied_and_others_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = reread([record(1)]).record(0)
    fresh = packed([record(1)])
    other_step = np.append(3, find_entry_points(stored.jpeg, 3)).astype(np.uint16)
    for known in (None, stored.info.entry_points, other_step, other_step[:0]):
        assert packed([replace(stored, info=replace(stored.info, entry_points=known))]) == fresh

    def fail(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(segment_table, "compute_entry_points", fail)
    assert packed([stored]) == fresh


def test_damaged_images_get_no_entry_points_and_no_error() -> None:
    each = record(1)
    broken = bytearray(each.jpeg)
    middle = each.info.header_length + int(each.info.segments[0]) // 2
    broken[middle : middle + 40] = bytes(40)
    container = reread([replace(each, jpeg=bytes(broken)), record(2)])
    assert container.index["flags"].tolist() == [0, ENTRY_POINTS] and not container.damage
    assert bytes(container.record(1).jpeg) == record(2).jpeg


@pytest.mark.parametrize("interval", [4, 17])
def test_an_index_that_contradicts_its_jpeg_gives_no_entry_points(interval: int) -> None:
    """A hostile data set is shuffled: the JPEG has other segments than the index says, of the same bytes."""
    data = add_restart_markers(noise(1, width=128 if interval == 4 else 136, height=40, sampling="444"), interval)
    info = parse_image_info(data)
    total, count = int(info.segments.sum()) + 2 * len(info.segments), 5
    lengths = np.full(count, total // count - 2, np.uint16)
    lengths[-1] += total % count
    claimed = replace(info, width=136, restart_interval=17, segments=lengths, height=40)
    assert len(entry_points(data, claimed)) == (0 if interval == 4 else count_entry_points(data, claimed))
    assert reread([Record(1, 0, data, claimed)]).index["flags"][0] == (0 if interval == 4 else ENTRY_POINTS)


def test_records_that_are_extracted_keep_their_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_table, "MIN_BYTES", 0)
    records = [narrow(0), record(1), narrow(2), record(3, "444"), record(4)]
    container = reread(records)
    extracted = container.extract(np.array([1, 2, 3]), attachments=False)
    for k, each in enumerate(records[1:4]):
        assert extracted.info(k).segments.tolist() == each.info.segments.tolist()
        expected, known = entry_points(each.jpeg, each.info), extracted.info(k).entry_points
        assert expected.tolist() == ([] if known is None else known.tolist())


@given(
    first=st.integers(0, 1 << 32 - 1),
    count=st.integers(0, 1 << 32 - 1) | st.integers(0, 9),
    interval=st.integers(0, 65535) | st.integers(0, 9),
    flags=st.sampled_from([0, ENTRY_POINTS, ENTRY_POINTS | ROW_CRCS]),
    table=st.lists(st.integers(0, 20), max_size=40),
)
def test_impossible_entry_points_are_none(first: int, count: int, interval: int, flags: int, table: list[int]) -> None:
    entry = np.zeros((), picstore.storage.format.layout.ENTRY)
    entry["segment_first"], entry["segment_count"], entry["restart_interval"] = first % 50, count, interval
    entry["flags"], entry["sampling"], entry["height"] = flags, 2, 9
    values = np.array(table, np.uint16)
    found = find_stored(entry, values)
    if found is not None:
        assert flags & ENTRY_POINTS and 0 <= found.start < found.stop <= len(values)
        assert 0 < values[found.start] < interval
        assert (found.stop - found.start - 1) == count * ((interval - 1) // int(values[found.start]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "set", [record(0), narrow(1), record(2, "444"), record(3, "grey")])


def tables(root: Path) -> dict[int, list[int] | None]:
    """The entry points of all records, by id."""
    found = {}
    for each in picstore.Dataset(root):
        points = each.info.entry_points
        found[each.id] = None if points is None else points.tolist()
    return found


def test_shuffles_keep_entry_points(root: Path, tmp_path: Path) -> None:
    shuffle(root, tmp_path / "shuffled", seed=1, method="transpose", workers=1)
    before = tables(root)
    assert tables(tmp_path / "shuffled") == before and [before[k] is None for k in range(4)] == [
        False,
        True,
        False,
        False,
    ]


def test_an_older_data_set_gains_entry_points_when_it_is_shuffled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tables(root)
    with monkeypatch.context() as patch:
        patch.setattr(packing, "entry_points", lambda jpeg, info: info.segments[:0])
        old = write_dataset(tmp_path / "old", [record(0), narrow(1), record(2, "444"), record(3, "grey")])
    assert set(tables(old).values()) == {None}
    shuffle(old, tmp_path / "new", seed=1, method="transpose", workers=1)
    assert tables(tmp_path / "new") == expected


def test_verify_tells_of_entry_points_that_are_wrong(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not verify(root, decode=True, workers=1).findings

    def other(place: int, value: int) -> Any:
        def make(jpeg: bytes, info: Any) -> np.ndarray:
            entries = entry_points(jpeg, info).copy()
            entries[place : place + 1] ^= value
            return entries

        return make

    for name, made, text in (
        ("moved", other(5, 1), "its entry points are wrong"),
        ("beyond", other(0, 1 << 15), "their interval is impossible"),
    ):
        monkeypatch.setattr(packing, "entry_points", made)
        path = write_dataset(tmp_path / name, [record(0), narrow(1)])
        (finding,) = verify(path, decode=True, workers=1).findings
        assert finding.problem.startswith("record 0: ") and text in finding.problem and finding.records_lost == 0
        assert not verify(path, workers=1).findings
