"""Encoder of training JPEGs: the scan of libjpeg-turbo, bit for bit, with optimal Huffman tables.

libjpeg-turbo optimises tables at the price of a second pass over all coefficients without SIMD; docs/measurements.md
has the figures.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from picstore.arrays import U8, U16
from picstore.errors import UsageError
from picstore.jpeg.decoder.coefficients import ZIGZAG
from picstore.jpeg.encoder.fdct import make_divisors
from picstore.jpeg.encoder.symbols import MAX_SYMBOLS, find_symbols, write_symbols
from picstore.jpeg.headers import CodingParameters, TableSelector, write_headers
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.markers import EOI, Component, Header
from picstore.jpeg.tiles import restart_interval
from picstore.jpeg.transcode import TranscodedJpeg

MAX_SIDE = 65_535  # pixels (T.81, B.2.2)
_JFIF = b"JFIF\0\1\1\0\0\1\0\1\0\0"  # version 1.01, square pixels, no thumbnail
_SAMPLING_FACTORS = {"444": (1, 1), "422": (2, 1), "420": (2, 2)}  # of luma
# T.81, tables K.1 and K.2, row by row.
_LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99, *(32 * (99,))),
)


def encode(pixels: U8, *, quality: int, subsampling: str, interval: int | None = None) -> TranscodedJpeg:
    """Encode a baseline JPEG with restart markers, JFIF, and no other metadata.

    Args:
        pixels: uint8 (height, width, 3) in RGB, or (height, width) in grey, of at most 65,535 pixels a side. Channels
            or pixels are contiguous; others are copied.
        quality: libjpeg's scale, 1 … 100.
        subsampling: of chroma, "444", "422" or "420"; grey images have none.
        interval: MCUs between markers, 1 … 65,535; by default one tile, see ``jpeg.tiles.restart_interval``.

    Raises:
        UsageError: the array or an argument is none of these.
    """
    grey = pixels.ndim == 2
    if pixels.dtype != np.uint8 or not (grey or (pixels.ndim == 3 and pixels.shape[2] == 3)) or not pixels.size:
        raise UsageError(
            f"pixels are {pixels.dtype} {pixels.shape}; give uint8 of shape (h, w, 3) or (h, w), not empty"
        )
    if subsampling not in _SAMPLING_FACTORS or not 1 <= quality <= 100 or max(pixels.shape) > MAX_SIDE:
        raise UsageError(f"quality {quality}, subsampling {subsampling!r} and shape {pixels.shape} make no JPEG")
    if pixels.strides[1] != 1 and pixels.strides[1:] != (3, 1):
        pixels = np.ascontiguousarray(pixels)
    h, v = (1, 1) if grey else _SAMPLING_FACTORS[subsampling]
    height, width = pixels.shape[:2]
    columns, rows = -(-width // (8 * h)), -(-height // (8 * v))
    interval = restart_interval(columns, 8 * h) if interval is None else interval
    if not 1 <= interval <= 0xFFFF:
        raise UsageError(f"restart interval {interval} is out of range: it has 1 to 65,535 MCUs")
    source = (pixels.__array_interface__["data"][0], *pixels.strides, *((0,) if grey else ()))
    blocks, segments = columns * rows * (1 if grey else h * v + 2), -(-columns * rows // interval)
    symbols, ends = np.empty(MAX_SYMBOLS * blocks, np.uint32), np.empty(segments + 1, np.int64)
    counts, values = np.zeros((4, 16), np.uint8), np.zeros((4, 256), np.uint8)
    codes = np.zeros((4, 256), np.uint32)
    shape = width, height, columns, rows, h, v
    factors, divisors = _quantisation(quality)
    bits = find_symbols(source, shape, interval, divisors, symbols, ends, (counts, values, codes))
    header = _header(width, height, (h, v), interval, grey=grey)
    used = [(0, 0), (1, 0)] if grey else [(0, 0), (1, 0), (0, 1), (1, 1)]
    tables = {(kind, k): _table(counts[2 * kind + k], values[2 * kind + k]) for kind, k in used}
    selectors = tuple(TableSelector(c.id, c.quantisation, c.quantisation) for c in header.components)
    coding = CodingParameters(factors, tables, selectors, b"\0\x3f\0", _JFIF, b"", 1)
    headers = write_headers(header, coding, tables, interval)
    first = len(headers)
    out = np.empty(first + bits // 4 + 4 * segments + 64, np.uint8)  # stuffing at most doubles the bytes
    starts = np.empty(segments + 1, np.int64)
    end = first + write_symbols(symbols, ends, codes, out[first:], starts)
    out[:first] = np.frombuffer(headers, np.uint8)
    out[end : end + 2] = 0xFF, EOI
    return TranscodedJpeg(out[: end + 2].tobytes(), replace(header, length=first), np.diff(starts) - 2)


@lru_cache(maxsize=16)
def _quantisation(quality: int) -> tuple[dict[int, bytes], U16]:
    """Scale the tables of T.81 as libjpeg does: bodies for DQT, and ``make_divisors`` of luma and chroma."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    scaled = [[min(max((k * percent + 50) // 100, 1), 255) for k in table] for table in (_LUMA, _CHROMA)]
    bodies = {k: bytes([k, *(table[at] for at in ZIGZAG[:64].tolist())]) for k, table in enumerate(scaled)}
    return bodies, np.stack([make_divisors(table) for table in scaled])


def _table(counts: U8, symbols: U8) -> HuffmanTable:
    lengths = counts.tobytes()
    return HuffmanTable(lengths, symbols.tobytes()[: sum(lengths)])


def _header(width: int, height: int, factors: tuple[int, int], interval: int, *, grey: bool) -> Header:
    components = Component(1, *factors, 0), Component(2, 1, 1, 1), Component(3, 1, 1, 1)
    count = 1 if grey else 3
    return Header("baseline", 8, width, height, components[:count], count, interval, 0)
