"""JPEGs as ``describe_tiles`` describes them to a decoder of segments on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.jpeg import segment_words as words
from picstore.jpeg.cut import TiledJpegs
from picstore.jpeg.decoder.describe import ROOM, describe_tiles
from picstore.jpeg.markers import parse_header
from picstore.jpeg.tiles import find_restart_segments


@dataclass(frozen=True)
class Described:
    """What ``describe_tiles`` makes of n JPEGs.

    Attributes:
        data: bytes that are held.
        tables: the arguments of ``SegmentTables``.
        rects: (n, 4), left, top, width and height of the tiles.
        results: (n, 4): 0 or why the GPU does not decode an image; segments, lengths and bytes that are held.
    """

    data: np.ndarray
    tables: tuple[Any, ...]
    rects: np.ndarray
    results: np.ndarray

    @property
    def codes(self) -> np.ndarray:
        """Of each image 0 or why the GPU does not decode it."""
        return self.results[:, 0]


def describe(
    jpegs: list[bytes],
    boxes: list[tuple[int, int, int, int]] | None = None,
    tilings: np.ndarray | None = None,
    lengths: list[np.ndarray] | None = None,
) -> Described:
    """Describe the tiles that boxes touch, or all; with tilings and lengths of segments that an index states."""
    headers = [parse_header(jpeg) for jpeg in jpegs] if tilings is None or lengths is None else []
    if tilings is None:
        tilings = np.array([[h.width, h.height, *h.mcu_size, h.restart_interval, h.length] for h in headers])
    if lengths is None:
        found = [find_restart_segments(jpeg, header) for jpeg, header in zip(jpegs, headers, strict=True)]
        lengths = [(ends - starts).astype(np.uint16) for starts, ends in found]
    tiled = TiledJpegs.from_streams(jpegs, tilings, lengths)
    n, segments = len(jpegs), int(tiled.sizes[:, 1].sum())
    room = -(-tiled.sizes[:, 0] // 8) * 8 + ROOM
    starts, firsts = np.cumsum(room) - room, np.cumsum(tiled.sizes[:, 1]) - tiled.sizes[:, 1]
    data = np.full(int(room.sum()), 0xA5, np.uint8)
    rows, rects, results = np.zeros((n, words.IMAGE_WORDS), np.int64), *np.zeros((2, n, 4), np.int64)
    whole = np.concatenate([np.zeros((n, 2), np.int64), tiled.tilings[:, :2]], axis=1)
    chosen = np.array(boxes) if boxes else whole
    described, held_lengths = np.zeros((segments, 4), np.int32), np.zeros(segments, np.uint16)
    # A row more of each table, which must stay as it is: kernels check no bounds.
    shapes = (words.HUFFMAN_BYTES, np.uint8), (4, np.int32), (64, np.int16)
    guarded = [np.full((4 * n + 1, size), 85, dtype) for size, dtype in shapes]
    codes, places, quantization = (each[: 4 * n] for each in guarded)
    streams = tiled.addresses, tiled.sizes, tiled.tilings, chosen
    images, tables = (rows, rects, results), (codes, places, quantization)
    describe_tiles((0, n), streams, (data, starts), (described, held_lengths, firsts), images, tables)
    assert all((each[-1] == 85).all() for each in guarded)
    count = np.where(results[:, 0] == 0, results[:, 1], 0)
    held = tilings, chosen, held_lengths
    return Described(data, (rows, described, firsts, count, *tables, held), rects, results)
