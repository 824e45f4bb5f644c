"""Rows of tiles: where they lie in a stream, and checksums that tell a wrong one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from tiled import noise, record

from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format import segment_table
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_writer import pack_container
from picstore.storage.format.layout import MCU_SIZES, ROW_CRCS, SAMPLINGS
from picstore.storage.format.read_container import unpack_container
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo, Record
from picstore.storage.format.segment_table import (
    count_row_checksums,
    find_rows,
    row_checksums,
    row_ends,
    stored_checksums,
    wrong_row,
)


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give row checksums to images of any size."""
    monkeypatch.setattr(segment_table, "MIN_BYTES", 0)


@cache
def container_of_several() -> Container:
    """A container of three images of different sizes with row checksums, and one without restart markers."""
    streams = [noise(1), noise(2, width=200, height=120, sampling="444"), noise(3, width=64, height=96)]
    streams.append(simplejpeg.encode_jpeg(np.zeros((64, 64, 3), np.uint8)))
    records = [Record(k, 0, data, parse_image_info(data)) for k, data in enumerate(streams)]
    ref = ContainerRef("0000/000000.pic", 4096)
    return unpack_container(memoryview(b"".join(map(bytes, pack_container(records, ref=ref)))), ref=ref)


@pytest.mark.parametrize("sampling", SAMPLINGS[1:])
def test_header_and_rows_of_tiles_are_the_whole_stream(sampling: str) -> None:
    data = noise(1, width=200, height=120, sampling=sampling)
    info = parse_image_info(data)
    ends = row_ends(info, len(data))
    assert ends is not None and ends[0] == info.header_length and ends[-1] == len(data)
    assert len(ends) - 1 == -(-120 // MCU_SIZES[SAMPLINGS.index(sampling)][1])
    assert all(data[end - 2] == 0xFF and 0xD0 <= data[end - 1] <= 0xD9 for end in ends[1:].tolist())


def test_segments_that_form_no_rows_or_do_not_fill_the_stream_have_none() -> None:
    data = noise(1, width=200, height=120)
    info = parse_image_info(data)
    fields = {name: getattr(info, name) for name in ImageInfo.__slots__}
    for change in ({"segments": info.segments[:-1]}, {"restart_interval": 0}, {"sampling": ""}, {"header_length": 0}):
        assert row_ends(ImageInfo(**{**fields, **change}), len(data)) is None
    assert row_ends(info, len(data) + 1) is None


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_one_wrong_bit_in_what_is_read_is_found_and_told_by_its_row(at: int, bit: int) -> None:
    data = bytearray(noise(4, width=64, height=96))
    info = parse_image_info(bytes(data))
    ends = row_ends(info, len(data))
    assert ends is not None
    crcs = row_checksums(bytes(data), info).view("<u4")
    at %= len(data)
    data[at] ^= 1 << bit
    wrong = int(np.searchsorted(ends, at, side="right")) - 1
    assert wrong_row(data, ends, crcs, range(len(ends) - 1)) == wrong
    part = bytes(data[: ends[0]]) + bytes(data[ends[2] : ends[5]])
    assert wrong_row(part, ends, crcs, range(2, 5)) == (wrong if wrong in (-1, 2, 3, 4) else None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=6))
def test_rows_of_several_images_are_found_together_as_each_alone(chosen: list[tuple[int, int, int]]) -> None:
    container = container_of_several()
    numbers = np.array([k for k, _, _ in chosen])
    rows = np.array([[first, stop] for _, first, stop in chosen])
    headers = container.index["header_length"][numbers].astype(np.int64)
    found = find_rows(headers, [container.stored_rows(k) for k in numbers.tolist()], rows)
    for i, (k, first, stop) in enumerate(chosen):
        ends = row_ends(container.info(k), int(container.index["length"][k]))
        if k == 3 or ends is None or not first < stop < len(ends):
            assert not found.there[i] and found.begins[i] == found.ends[i] == 0
            continue
        stream = bytes(container.jpeg(k))
        assert found.there[i] and (found.begins[i], found.ends[i]) == (ends[first], ends[stop])
        assert found.crcs[i] == crc32c(stream[: ends[0]] + stream[ends[first] : ends[stop]])


def test_rows_whose_table_is_damaged_or_too_short_are_not_there() -> None:
    container = container_of_several()
    wrong = container.segments.copy()
    wrong[0] += 1
    for table in (NO_SEGMENTS, container.segments[: int(container.index["segment_count"][0])], wrong):
        assert replace(container, segment_table=table, tile_rows={}).stored_rows(0) is None
    assert replace(container, tile_rows={}).stored_rows(0) is not None


def test_small_images_have_no_row_checksums_and_containers_stay_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    data = noise(0, width=64, height=64)
    assert len(row_checksums(data, parse_image_info(data))) == 0
    large = record(1)
    assert len(large.jpeg) >= segment_table.MIN_BYTES and len(row_checksums(large.jpeg, large.info)) == 2 * (1 + 64)


def test_row_checksums_follow_the_segment_lengths_as_the_format_says() -> None:
    records = [record(k) for k in range(2)]
    ref = ContainerRef("0000/000000.pic", 4096)
    container = unpack_container(memoryview(b"".join(map(bytes, pack_container(records, ref=ref)))), ref=ref)
    assert container.segment_table is not None and not container.damage
    assert (container.index["flags"] == ROW_CRCS).all()
    for k, each in enumerate(records):
        crcs = stored_checksums(container.index, container.segment_table, k)
        ends = row_ends(each.info, len(each.jpeg))
        assert crcs is not None and ends is not None and len(crcs) == len(ends)
        assert np.array_equal(container.info(k).segments, each.info.segments)
        assert wrong_row(each.jpeg, ends, crcs, range(len(ends) - 1)) is None
    beyond = container.segment_table[: int(container.index["segment_first"][1])]
    assert stored_checksums(container.index, beyond, 1) is None


@pytest.mark.parametrize("sampling", SAMPLINGS[1:])
def test_entries_of_checksums_are_bounded_exactly(sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = noise(1, width=200, height=120, sampling=sampling)
    info = parse_image_info(data)
    assert count_row_checksums(data, info) == len(row_checksums(data, info))
    monkeypatch.setattr(segment_table, "MIN_BYTES", len(data))
    assert count_row_checksums(data, info) == len(row_checksums(data, info)) > 0
    monkeypatch.setattr(segment_table, "MIN_BYTES", len(data) + 1)
    assert count_row_checksums(data, info) == len(row_checksums(data, info)) == 0
