"""Entry points of long segments: where MCUs begin, by a reader of single bits, and what is left without them."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.markers import find_restart_segments, iterate_marker_segments, parse_header
from picstore.jpeg.tiles import entry_interval, restart_interval
from picstore.jpeg.transcode import add_restart_markers, find_entry_points, read_marker_segments, transcode

KINDS = ("grey", "444", "422", "440", "420")
MCU = {"grey": 8, "444": 8, "422": 16, "440": 8, "420": 16}


@cache
def encoded(kind: str, columns: int, seed: int = 0) -> bytes:
    """A JPEG of noise, of so many columns of MCUs, without restart markers."""
    pixels = np.random.default_rng(seed).integers(0, 256, (20, MCU[kind] * columns - 3, 3), np.uint8)
    if kind == "grey":
        return simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), 95, "GRAY")
    return simplejpeg.encode_jpeg(pixels, 60 + 10 * seed, "RGB", kind)


def codes_of(table: HuffmanTable) -> dict[str, int]:
    """Symbols by the digits of their codes (T.81, C.2)."""
    codes, code, number = {}, 0, 0
    for length, count in enumerate(table.counts, start=1):
        for _ in range(count):
            codes[f"{code:0{length}b}"] = table.symbols[number]
            code, number = code + 1, number + 1
        code <<= 1
    return codes


def slow_entry_points(jpeg: bytes, step: int) -> list[list[int]]:
    """Read each segment bit by bit, and note the bit of the stream at which every ``step``-th MCU begins."""
    header, coding = parse_header(jpeg), read_coding_parameters(iterate_marker_segments(jpeg))
    single = len(header.components) == 1
    blocks = [
        (codes_of(coding.huffman[0, selector.dc]), codes_of(coding.huffman[1, selector.ac]))
        for component, selector in zip(header.components, coding.selectors, strict=True)
        for _ in range(1 if single else component.horizontal * component.vertical)
    ]
    found = []
    for start, end in zip(*find_restart_segments(jpeg, header), strict=True):
        data = jpeg[start:end]
        places = [k for k in range(len(data)) if not (data[k] == 0 and k and data[k - 1] == 0xFF)]
        bits = "".join(f"{data[k]:08b}" for k in places)
        at, points = 0, [0]
        for mcu in range(header.restart_interval):
            if mcu and mcu % step == 0:
                points.append(8 * places[at // 8] + at % 8)
            for dc, ac in blocks:
                k = 0
                while k < 64:
                    table, length = ac if k else dc, 1
                    while bits[at : at + length] not in table:
                        length += 1
                    symbol = table[bits[at : at + length]]
                    at += length + (symbol & 15)
                    k = 64 if k and symbol == 0 else k + (symbol >> 4 if k else 0) + 1
        found.append([b - a for a, b in pairwise(points)])
    return found


@given(kind=st.sampled_from(KINDS), columns=st.integers(2, 7), step=st.integers(1, 6), seed=st.integers(0, 3))
def test_entry_points_are_the_bits_at_which_mcus_begin(kind: str, columns: int, step: int, seed: int) -> None:
    step = min(step, columns - 1)
    jpeg = add_restart_markers(encoded(kind, columns, seed), columns)
    found = find_entry_points(jpeg, step)
    assert found is not None and found.tolist() == slow_entry_points(jpeg, step)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 3])
def test_a_transcoder_knows_the_entry_points_of_what_it_writes(kind: str, seed: int) -> None:
    columns = 17 if MCU[kind] == 8 else 11
    plain = encoded(kind, columns, seed)
    made = transcode(plain, *read_marker_segments(plain))
    assert made.header.restart_interval == columns and made.entry_points is not None
    assert made.entry_points.tolist() == slow_entry_points(made.jpeg, 64 // MCU[kind])
    again = transcode(made.jpeg, *read_marker_segments(made.jpeg))  # whose old segments end where the new ones do
    assert again.jpeg == made.jpeg and again.entry_points is None


def test_tiles_wider_than_two_get_an_entry_point_every_64_pixels() -> None:
    assert [entry_interval(k, 8) for k in (1, 8, 16, 17, 47)] == [0, 0, 0, 8, 8]
    assert [entry_interval(k, 16) for k in (1, 4, 8, 9, 37)] == [0, 0, 0, 4, 4]
    for width in (8, 16):
        for columns in range(1, 200):
            interval = restart_interval(columns, width)
            assert 0 <= entry_interval(interval, width) < interval
    plain = encoded("420", 8)
    assert transcode(plain, *read_marker_segments(plain)).entry_points is None


@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_damaged_stream_has_other_entry_points_or_none_and_no_error(at: int, bit: int) -> None:
    jpeg = bytearray(add_restart_markers(encoded("420", 5), 5))
    jpeg[at % len(jpeg)] ^= 1 << bit
    found = find_entry_points(bytes(jpeg), 2)
    assert found is None or (found.dtype == np.uint16 and found.ndim == 2)


def test_segments_with_surplus_bytes_or_unequal_numbers_of_mcus_have_none() -> None:
    jpeg = add_restart_markers(encoded("444", 5), 5)
    _, ends = find_restart_segments(jpeg, parse_header(jpeg))
    assert find_entry_points(jpeg, 2) is not None
    assert find_entry_points(jpeg[: ends[0]] + b"\x55" + jpeg[ends[0] :], 2) is None
    assert find_entry_points(add_restart_markers(encoded("444", 5), 4), 2) is None
    for damaged in (jpeg[:-40], jpeg[:-2], jpeg[:-2] + b"\xff\xdc", b"no JPEG"):
        assert find_entry_points(damaged, 2) is None
    assert find_entry_points(jpeg, 5) is None


def test_distances_beyond_16_bits_leave_an_image_without_entry_points() -> None:
    """48 MCUs of 6 blocks of noise take more than 8 KB."""
    jpeg = add_restart_markers(encoded("420", 49, 3), 49)
    assert find_entry_points(jpeg, 48) is None and find_entry_points(jpeg, 4) is not None
