"""JPEGs as ``describe_tiles`` describes them to a decoder of segments on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.jpeg import gpu_segment_layout as words
from picstore.jpeg.cut import TiledJpegs
from picstore.jpeg.decoder.describe import describe_tiles, measure_tiles
from picstore.jpeg.markers import find_restart_segments, parse_header
from picstore.jpeg.tiles import INTERVAL
from picstore.storage.format.layout import ENTRY, ENTRY_POINTS
from picstore.storage.format.segment_table import find_entry_points
from picstore.train.batching.host_batch import SegmentLayout, SegmentTables


@dataclass(frozen=True)
class Described:
    """What ``describe_tiles`` makes of n JPEGs.

    Attributes:
        data: bytes that are held.
        tables: images, segments, the first and the number of each image's parts, codes, places, quantization, and
            tilings, boxes and lengths of what is held.
        rects: (n, 4), left, top, width and height of the tiles.
        results: (n, 4): 0 or why the GPU does not decode an image; parts, lengths and bytes that are held.
    """

    data: np.ndarray
    tables: tuple[Any, ...]
    rects: np.ndarray
    results: np.ndarray

    @property
    def codes(self) -> np.ndarray:
        """Of each image 0 or why the GPU does not decode it."""
        return self.results[:, 0]

    def in_block(self) -> SegmentTables:
        """The tables in one block of memory, as in a batch."""
        rows, segments, first, count, codes, places, quantization, held = self.tables
        layout = SegmentLayout(len(self.data), len(rows), len(segments))
        block = np.empty(layout.size, np.uint8)
        arrays = SegmentTables.divide(layout, block)
        for array, content in zip(
            arrays.values(), (self.data, segments, codes, places, quantization, rows, *held), strict=True
        ):
            array[...] = content
        return SegmentTables(layout, block, arrays, first, count)


def place_of(entries: np.ndarray, interval: int, count: int) -> tuple[int, int]:
    """Address of the entry points, and the MCUs between two, 0 for none, -1 for impossible ones."""
    if not len(entries):
        return 0, 0
    entry = np.zeros((), ENTRY)
    entry["restart_interval"], entry["segment_count"], entry["flags"] = interval, count, ENTRY_POINTS
    found = find_entry_points(entry, np.concatenate([np.zeros(count, np.uint16), entries]))
    return (0, -1) if found is None else (entries.ctypes.data + entries.itemsize, int(entries[0]))


def describe(
    jpegs: list[bytes],
    boxes: list[tuple[int, int, int, int]] | None = None,
    tilings: np.ndarray | None = None,
    *,
    lengths: list[np.ndarray] | None = None,
    entries: list[np.ndarray] | None = None,
    factors: list[int] | None = None,
) -> Described:
    """Describe the tiles that boxes touch, or all; with tilings and lengths of segments that an index states.

    ``entries`` are of each image those of the segment table for its entry points, empty for none; ``factors`` 1, 2, 4
    or 8, by which decoding divides its sides.
    """
    headers = [parse_header(jpeg) for jpeg in jpegs] if tilings is None or lengths is None else []
    if tilings is None:
        tilings = np.array([[h.width, h.height, *h.mcu_size, h.restart_interval, h.length] for h in headers])
    if lengths is None:
        found = [find_restart_segments(jpeg, header) for jpeg, header in zip(jpegs, headers, strict=True)]
        lengths = [(ends - starts).astype(np.uint16) for starts, ends in found]
    tiled = TiledJpegs.from_streams(jpegs, tilings, lengths)
    n, entries = len(jpegs), [np.ascontiguousarray(each, np.uint16) for each in entries or [np.empty(0)] * len(jpegs)]
    places = zip(entries, tiled.tilings[:, INTERVAL].tolist(), tiled.sizes[:, 1].tolist(), strict=True)
    points = np.array([place_of(*each) for each in places], np.int64)
    whole = np.concatenate([np.zeros((n, 2), np.int64), tiled.tilings[:, :2]], axis=1)
    chosen = np.array(boxes) if boxes else whole
    by = np.array(factors or [1] * n)
    streams = tiled.addresses, tiled.sizes, tiled.tilings, chosen, by, points
    starts, firsts = np.zeros((2, n + 1), np.int64)
    measure_tiles(streams, starts, firsts)
    data = np.full(starts[-1], 0xA5, np.uint8)
    rows, rects, results = np.zeros((n, words.IMAGE_WORDS), np.int64), *np.zeros((2, n, 4), np.int64)
    described = np.zeros((firsts[-1] + 1, words.PART_WORDS), np.int32)
    held_lengths = np.zeros(len(described), np.uint16)
    described[-1] = held_lengths[-1] = 85
    # A row more of each table, which must stay as it is: kernels check no bounds.
    shapes = (words.HUFFMAN_BYTES, np.uint8), (4, np.int32), (64, np.int16)
    guarded = [np.full((4 * n + 1, size), 85, dtype) for size, dtype in shapes]
    tables = tuple(each[: 4 * n] for each in guarded)
    images = rows, rects, results
    describe_tiles((0, n), streams, (data, starts), (described, held_lengths, firsts), images, tables)
    assert all((each[-1] == 85).all() for each in (*guarded, described, held_lengths))
    count = np.where(results[:, 0] == 0, results[:, 1], 0)
    held = tilings, chosen, held_lengths
    return Described(data, (rows, described, firsts[:-1], count, *tables, held), rects, results)
