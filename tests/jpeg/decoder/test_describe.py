"""Tiles described for a GPU: which bytes are held, where segments, planes and tables lie, and what is refused."""

from __future__ import annotations

import struct
from typing import Any
from unittest.mock import patch

import described
import numpy as np
import pytest
import simplejpeg
from described import Described, describe
from hypothesis import given
from hypothesis import strategies as st

from picstore.jpeg import gpu_segment_layout as words
from picstore.jpeg.cut import cut
from picstore.jpeg.decoder.box import NO_GRID
from picstore.jpeg.decoder.describe import WRONG_ENTRY_POINTS, measure_tiles
from picstore.jpeg.markers import find_restart_segments, parse_header
from picstore.jpeg.transcode import add_restart_markers, find_entry_points

KINDS = ("grey", "444", "422", "440", "420")


def tiled(kind: str, width: int, height: int, *, tile_width: int = 2) -> bytes:
    """A JPEG of noise with a restart marker after so many MCUs, if they divide a row."""
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    if kind == "grey":
        plain = simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), 70, "GRAY")
    else:
        plain = simplejpeg.encode_jpeg(pixels, 70, "RGB", kind)
    columns = -(-width // parse_header(plain).mcu_size[0])
    return add_restart_markers(plain, tile_width if columns % tile_width == 0 else 1)


def tables_of(jpeg: bytes) -> tuple[dict[int, bytes], dict[int, bytes], list[tuple[int, int, int, int]]]:
    """Quantization tables and Huffman tables by their number; of each component h, v, and the numbers of its tables."""
    factors, codes, frame, at = {}, {}, {}, 2
    while True:
        marker, length = struct.unpack_from(">HH", jpeg, at)
        body = jpeg[at + 4 : at + 2 + length]
        while marker == 0xFFDB and body:
            factors[body[0]], body = body[1:65], body[65:]
        while marker == 0xFFC4 and body:
            size = 17 + sum(body[1:17])
            codes[body[0]], body = body[1:size], body[size:]
        if marker == 0xFFC0:
            frame = {body[6 + 3 * k]: (body[7 + 3 * k], body[8 + 3 * k]) for k in range(body[5])}
        if marker == 0xFFDA:
            scan = [(body[1 + 2 * k], body[2 + 2 * k]) for k in range(body[0])]
            return factors, codes, [(frame[c][0] >> 4, frame[c][0] & 15, frame[c][1], t) for c, t in scan]
        at += 2 + length


def check(found: Described, i: int, start: int, jpeg: bytes, box: tuple[int, int, int, int]) -> None:
    """Compare what is described of an image with its stream, read by other code."""
    header = parse_header(jpeg)
    starts, ends = (each.tolist() for each in find_restart_segments(jpeg, header))
    mcu_width, mcu_height = header.mcu_size
    tile_width = mcu_width * header.restart_interval
    per_row = -(-header.width // tile_width)
    left, top, width, height = found.rects[i].tolist()
    part, (dx, dy) = cut(jpeg, (box[0], box[1], box[2] - box[0], box[3] - box[1]))
    cut_header = parse_header(part)
    assert (left, top, width, height) == (box[0] - dx, box[1] - dy, cut_header.width, cut_header.height)
    first, last = top // mcu_height, -(-(top + height) // mcu_height)
    columns = range(left // tile_width, -(-(left + width) // tile_width))
    rows, segments, firsts, count, *_, (_, _, lengths) = found.tables
    held = jpeg[: header.length] + jpeg[starts[first * per_row] : ends[last * per_row - 1] + 2]
    assert found.results[i].tolist() == [0, len(columns) * (last - first), per_row * (last - first), len(held)]
    assert count[i] == found.results[i, 1]
    assert found.data[start : start + len(held)].tobytes() == held
    row, at = rows[i], int(firsts[i])
    components = tables_of(jpeg)[2]
    h, v = components[0][:2] if len(components) > 1 else (1, 1)
    blocks = 1 if len(components) == 1 else h * v + 2
    number = 0
    for y in range(first, last):
        for x in range(per_row):
            k = y * per_row + x
            assert lengths[at + k - first * per_row] == ends[k] - starts[k]
            if x in columns:
                begin, length, block, *part = segments[at + number].tolist()
                assert held[begin : begin + length] == jpeg[starts[k] : ends[k]]
                assert block == number * header.restart_interval * blocks
                assert part == [header.restart_interval, 0, words.WHOLE_BYTE]
                number += 1
    assert (row[words.WIDTH], row[words.HEIGHT]) == (width, height)
    assert (row[words.ACROSS], row[words.DOWN], row[words.COMPONENTS]) == (h, v, len(components))
    assert (row[words.INTERVAL], row[words.PER_ROW]) == (header.restart_interval, len(columns))
    assert (row[words.BLOCKS], row[words.HELD]) == (number * header.restart_interval * blocks, found.results[i, 2])
    assert row[words.DATA] == start and row[words.PITCH] == -(-width // 4) * 4
    check_planes(row, components, mcus=number * header.restart_interval, tall=last - first)
    check_tables(found, i, jpeg)


def check_planes(row: np.ndarray, components: list[tuple[int, int, int, int]], *, mcus: int, tall: int) -> None:
    """Compare where the planes of the components lie: one after the other, of whole tiles."""
    samples = 0
    for c in range(len(components)):
        h, v = (row[words.ACROSS], row[words.DOWN]) if c == 0 else (1, 1)
        assert (row[words.PLANE + c], row[words.STRIDE + c]) == (samples, mcus // tall * 8 * h)
        samples += mcus * 64 * h * v
    assert row[words.SAMPLES] == samples


def check_tables(found: Described, i: int, jpeg: bytes) -> None:
    """Compare codes, quantization, and the room of lookup tables: an entry for each window that has a code."""
    rows, _, _, _, codes, places, quantization, _ = found.tables
    factors, huffman, components = tables_of(jpeg)
    entries = 0
    for k in range(4):
        place, key = places[4 * i + k].tolist(), (k % 2) | (k // 2) << 4
        used = [c for c, each in enumerate(components) if (each[3] >> 4 if k < 2 else each[3] & 15) == k % 2]
        if not used:
            assert place[words.ENTRY_COUNT] == 0
            continue
        counts = huffman[key][:16]
        assert codes[4 * i + k].tobytes() == huffman[key].ljust(words.HUFFMAN_BYTES, b"\0")
        short = sum(count << 8 - bits for bits, count in enumerate(counts[:9])) if any(counts[9:]) else 512
        size = short + 128 * (512 - short)
        assert place == [entries, size, short, int(k < 2)]
        for c in used:
            assert rows[i, (words.DC if k < 2 else words.AC) + c] == entries // 64 << 16 | 127 * short
        entries += -(-size // 64) * 64
    assert rows[i, words.ENTRIES] == entries
    for c, (_, _, number, _) in enumerate(components):
        assert rows[i, words.QUANTIZATION + c] == 4 * i + number
        assert quantization[4 * i + number].tolist() == list(factors[number])


IMAGES = {
    (kind, width, height): tiled(kind, width, height)
    for kind in KINDS
    for width, height in ((97, 60), (64, 33), (150, 16), (8, 8))
}


@given(
    chosen=st.lists(st.tuples(st.sampled_from(sorted(IMAGES)), *[st.floats(0, 1)] * 4), min_size=1, max_size=3),
)
def test_tiles_are_described_as_their_streams_are(chosen: list[Any]) -> None:
    boxes = []
    for (_, width, height), a, b, c, d in chosen:
        left, top = int(a * (width - 1)), int(b * (height - 1))
        boxes.append((left, top, left + 1 + int(c * (width - left - 1)), top + 1 + int(d * (height - top - 1))))
    jpegs = [IMAGES[kind] for kind, *_ in chosen]
    found = describe(jpegs, boxes)
    start = 0
    for i, (jpeg, box) in enumerate(zip(jpegs, boxes, strict=True)):
        check(found, i, start, jpeg, box)
        start += -(-int(found.results[i, 3]) // 8) * 8 + 16
    assert start == len(found.data)  # no byte more than what is held


@pytest.mark.parametrize("kind", KINDS)
def test_whole_images_are_described_as_their_streams_are(kind: str) -> None:
    jpeg = IMAGES[kind, 97, 60]
    check(describe([jpeg]), 0, 0, jpeg, (0, 0, 97, 60))


def test_a_wrong_marker_is_refused_or_in_a_box_left_to_the_decoder() -> None:
    jpeg = IMAGES["420", 97, 60]
    header = parse_header(jpeg)
    _, ends = find_restart_segments(jpeg, header)
    tiling = np.array([[97, 60, 16, 16, header.restart_interval, header.length]])
    whole = (0, 0, 97, 60)
    assert describe([jpeg], [whole], tiling).codes[0] == 0
    for end in (int(ends[0]), int(ends[-2])):
        for at in (end, end + 1):
            damaged = bytearray(jpeg)
            damaged[at] ^= 8
            lengths = find_restart_segments(jpeg, header)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("described.find_restart_segments", lambda *_, lengths=lengths: lengths)
                assert describe([bytes(damaged)], [whole], tiling).codes[0] < 0
                for box in ((1, 0, 97, 60), (0, 1, 97, 60), (0, 0, 96, 60), (0, 0, 97, 59)):
                    assert describe([bytes(damaged)], [box], tiling).codes[0] == 0


@pytest.mark.parametrize("word", [0, 2, 3, 4, 5])
def test_a_tiling_of_another_stream_is_refused(word: int) -> None:
    jpeg = IMAGES["420", 64, 33]
    header = parse_header(jpeg)
    tiling = np.array([[64, 33, 16, 16, header.restart_interval, header.length]])
    for change in (-1, 1, 16):
        other = tiling.copy()
        other[0, word] += change
        assert describe([jpeg], [(0, 0, 8, 8)], other).codes[0] < 0


def test_rows_that_are_held_have_the_headers_of_the_whole_image() -> None:
    jpeg = IMAGES["420", 64, 33]
    header = parse_header(jpeg)
    tiling = np.array([[64, 33, 16, 16, header.restart_interval, header.length]])
    taller = tiling + np.array([0, 1, 0, 0, 0, 0])
    assert describe([jpeg], [(0, 0, 64, 33)], taller).codes[0] == 0
    assert describe([jpeg], [(0, 0, 64, 34)], taller).codes[0] < 0


def long_tile(kind: str, columns: int = 7, height: int = 20) -> bytes:
    """A JPEG of noise whose rows are a tile each."""
    width = columns * (8 if kind in ("grey", "444", "440") else 16)
    return tiled(kind, width - 3, height, tile_width=columns)


def bits_of(data: bytes) -> str:
    """The bits of entropy-coded data without stuffed zeros."""
    return "".join(f"{byte:08b}" for byte in data.replace(b"\xff\x00", b"\xff"))


@given(kind=st.sampled_from(KINDS), step=st.integers(1, 6), rows=st.tuples(st.integers(0, 19), st.integers(1, 20)))
def test_parts_between_entry_points_are_all_bits_of_a_segment(kind: str, step: int, rows: tuple[int, int]) -> None:
    jpeg = long_tile(kind)
    header = parse_header(jpeg)
    points = find_entry_points(jpeg, step)
    assert points is not None
    box = (3, min(rows[0], rows[1] - 1), 9, max(rows[0] + 1, rows[1]))
    plain, found = describe([jpeg], [box]), describe([jpeg], [box], entries=[np.append(step, points)])
    assert found.codes[0] == 0 and np.array_equal(found.rects, plain.rects)
    assert all(np.array_equal(found.tables[k], plain.tables[k]) for k in (0, 4, 5, 6))
    (starts, ends), per_segment = find_restart_segments(jpeg, header), 1 + 6 // step
    segments, row, top = int(plain.results[0, 1]), found.tables[0][0], int(found.rects[0, 1]) // header.mcu_size[1]
    assert found.results[0].tolist() == [0, segments * per_segment, *plain.results[0, 2:].tolist()]
    per_mcu = int(row[words.BLOCKS]) // segments // 7
    parts = iter(found.tables[1].tolist())
    for k in range(segments):
        mine, begins = "", [0, *np.cumsum(points[top + k]).tolist()]
        for first in range(0, 7, step):
            offset, length, block, mcus, before, after = next(parts)
            assert (block, mcus) == ((7 * k + first) * per_mcu, min(step, 7 - first))
            assert 8 * (offset - int(plain.tables[1][k, words.OFFSET])) + before == begins[first // step]
            bits = bits_of(found.data[offset : offset + length].tobytes())
            mine += bits[before : len(bits) - after % 8]
        assert mine == bits_of(jpeg[starts[top + k] : ends[top + k]]) and after == words.WHOLE_BYTE


@given(
    kind=st.sampled_from(KINDS),
    step=st.integers(1, 6),
    changes=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 65535) | st.integers(0, 200)), max_size=4),
)
def test_parts_of_any_entry_points_lie_within_their_segment(
    kind: str, step: int, changes: list[tuple[int, int]]
) -> None:
    jpeg = long_tile(kind)
    header = parse_header(jpeg)
    points = find_entry_points(jpeg, step)
    assert points is not None
    entries = np.append(step, points)
    for place, value in changes:
        entries[1 + place % points.size] = value
    found = describe([jpeg], entries=[entries])
    assert found.codes[0] in (0, WRONG_ENTRY_POINTS)
    if found.codes[0] == 0:
        per_mcu = int(found.tables[0][0, words.BLOCKS]) // len(points) // 7
        for row, (start, end) in enumerate(zip(*find_restart_segments(jpeg, header), strict=True)):
            parts = found.tables[1][row * (points.shape[1] + 1) :][: points.shape[1] + 1]
            offset, length, block, mcus, before, after = parts.T
            assert (offset >= start).all() and (length > 0).all() and (offset + length <= end).all()
            assert block.tolist() == [(7 * row + first) * per_mcu for first in range(0, 7, step)]
            assert mcus.sum() == 7 and (before >= 0).all() and (before < 8).all() and before[0] == 0
            assert (after[:-1] < 8).all() and after[-1] == words.WHOLE_BYTE


@pytest.mark.parametrize("wrong", ["step", "none", "beyond", "stuffed"])
def test_entry_points_outside_of_their_segment_are_refused(wrong: str) -> None:
    jpeg = long_tile("420", height=48)
    header = parse_header(jpeg)
    starts, ends = (each.tolist() for each in find_restart_segments(jpeg, header))
    points = find_entry_points(jpeg, 2)
    assert points is not None
    entries = np.append(2, points)
    if wrong == "step":
        entries[0] = 7
    elif wrong == "none":
        entries[3] = 0
    elif wrong == "beyond":
        entries[3] += 8 * (ends[0] - starts[0]) - int(points[0].sum())
    else:
        stuffed = jpeg.index(b"\xff\x00", starts[0]) + 1
        assert stuffed < ends[0]
        entries[1], entries[2], entries[3] = 8 * (stuffed - starts[0]), 1, 1
    assert describe([jpeg], entries=[entries]).codes[0] == WRONG_ENTRY_POINTS
    below = describe([jpeg], [(0, 30, 9, 40)], entries=[entries])  # of rows that are sound
    assert (below.codes[0] == 0) == (wrong != "step")


def test_an_image_without_room_is_none_for_the_gpu_and_copies_nothing() -> None:
    jpeg = IMAGES["420", 97, 60]
    measure = measure_tiles
    for fewer in range(2):

        def measure_less(streams: Any, *begins: Any, fewer: int = fewer) -> None:
            measure(streams, *begins)
            begins[fewer][1] -= 8

        with patch.object(described, "measure_tiles", measure_less):
            assert describe([jpeg]).codes[0] == NO_GRID
