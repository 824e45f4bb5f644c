"""Encoder of training JPEGs: the scan of libjpeg-turbo, bit for bit, with optimal Huffman tables.

libjpeg-turbo optimizes tables by a second pass over all coefficients, without SIMD (docs/archive/measurements.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from picstore.arrays import I64, U8, U16, U32
from picstore.errors import UsageError
from picstore.jpeg.decoder.coefficients import ZIGZAG
from picstore.jpeg.encoder.fdct import make_divisors
from picstore.jpeg.encoder.symbols import MAX_SYMBOLS, choose_codes, find_symbols, write_symbols
from picstore.jpeg.headers import CodingParameters, TableSelector, write_headers
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.markers import EOI, Component, Header
from picstore.jpeg.quality_tables import scale_tables
from picstore.jpeg.tiles import restart_interval
from picstore.jpeg.transcode import TranscodedJpeg

MAX_SIDE = 65_535  # Largest width and height in pixels (T.81, B.2.2).
# Height in pixels of a 4:2:0 MCU, a multiple of the height of any other MCU.
_MCU_HEIGHT = 16
# Approximate number of pixels of a strip, the rows of an image that are encoded at a time. The Huffman symbols of a
# strip take at most 6 MiB for 4:2:0, 12 MiB for 4:4:4.
_STRIP_PIXELS = 1 << 20
# Largest number of bytes of a symbol in the stream: 16 bits of code + 11 of value, doubled by stuffing, are 54 bits.
_MAX_BYTES = 7
_END = bytes([0xFF, EOI])
_JFIF = b"JFIF\0\1\1\0\0\1\0\1\0\0"  # version 1.01, square pixels, no thumbnail
# Horizontal and vertical sampling factors of the luma, by chroma subsampling.
_SAMPLING_FACTORS = {"444": (1, 1), "422": (2, 1), "420": (2, 2)}


def encode(pixels: U8, *, quality: int, subsampling: str, interval: int | None = None) -> TranscodedJpeg:
    """Encode a baseline JPEG with restart markers and JFIF, without other metadata.

    Args:
        pixels: uint8 (height, width, 3) in RGB, or (height, width) in grey, of at most 65,535 pixels a side; copied if
            neither channels nor pixels are contiguous.
        quality: libjpeg's scale, 1 … 100.
        subsampling: chroma subsampling, "444", "422" or "420"; no effect on grey images.
        interval: MCUs between markers, 1 … 65,535; by default those of a tile, see ``jpeg.tiles.restart_interval``.

    Raises:
        UsageError: the array or an argument has an impossible value.
    """
    shape = pixels.shape[1::-1] if pixels.ndim > 1 else (0, 0)
    return encode_strips((pixels,), size=shape, quality=quality, subsampling=subsampling, interval=interval)


def strip_height(width: int) -> int:
    """Return the height in pixels of a strip for ``encode_strips``: whole rows of MCUs, of about a megapixel in all."""
    return _MCU_HEIGHT * max(1, _STRIP_PIXELS // (_MCU_HEIGHT * width))


def encode_strips(
    strips: Iterable[U8], *, size: tuple[int, int], quality: int, subsampling: str, interval: int | None = None
) -> TranscodedJpeg:
    """Encode an image from strips of its rows, of which only the Huffman symbols stay in memory.

    Symbols take 1.4 bytes per pixel for photographs at quality 90, and at most 6 for 4:2:0, 8 for 4:2:2, 12 for 4:4:4.

    Args:
        strips: arrays like the ``pixels`` of ``encode``, from top to bottom, each of a multiple of 16 rows except the
            last.
        size: width and height of the image.
        quality, subsampling, interval: see ``encode``; with several strips, ``interval`` must divide a row's MCUs.

    Raises:
        UsageError: the strips do not form an image of ``size``, or an argument is out of range.
    """
    width, height = size
    if subsampling not in _SAMPLING_FACTORS:
        raise UsageError(f"subsampling is {subsampling!r}; possible are {', '.join(_SAMPLING_FACTORS)}")
    if not 1 <= quality <= 100:
        raise UsageError(f"quality is {quality}; give 1 to 100")
    if not 1 <= min(size) <= max(size) <= MAX_SIDE:
        raise UsageError(f"size is {size}; give width and height, 1 to {MAX_SIDE:,} pixels each")
    scan, top = None, 0
    for strip in strips:
        _check_strip(strip, width, height - top)
        if scan is None:
            factors = (1, 1) if strip.ndim == 2 else _SAMPLING_FACTORS[subsampling]
            scan = _Scan(size, quality, factors, interval, grey=strip.ndim == 2)
        top += len(strip)
        scan.add_symbols(strip, last=top == height)
    if scan is None or top != height:
        raise UsageError(f"the strips have {top} rows together; give {height}, the height of the image")
    return scan.write()


def _check_strip(pixels: U8, width: int, height: int) -> None:
    color = pixels.ndim == 3 and pixels.shape[2] == 3
    if pixels.dtype != np.uint8 or not (color or pixels.ndim == 2) or not pixels.size:
        raise UsageError(
            f"pixels are {pixels.dtype} {pixels.shape}; give uint8 of shape (h, w, 3) or (h, w), not empty"
        )
    if pixels.shape[1] != width or len(pixels) > height:
        raise UsageError(
            f"a strip has {pixels.shape[1]} × {len(pixels)} pixels; give a width of {width} and at most {height} rows"
        )


class _Scan:
    """Scan of a JPEG that is written: Huffman symbols and values of the strips so far, and the symbols' frequencies."""

    def __init__(
        self, size: tuple[int, int], quality: int, factors: tuple[int, int], interval: int | None, *, grey: bool
    ) -> None:
        self._columns = -(-size[0] // (8 * factors[0]))
        interval = restart_interval(self._columns, 8 * factors[0]) if interval is None else interval
        if not 1 <= interval <= 0xFFFF:
            raise UsageError(f"restart interval is {interval}; give 1 to 65,535 MCUs")
        self._header = _header(*size, factors, interval, grey=grey)
        self._quantization, self._divisors = _quantization(quality)
        self._frequencies = np.zeros((4, 256), np.uint32)
        self._scratch = np.empty(0, np.uint32)
        self._found: deque[tuple[U32, I64]] = deque()

    def add_symbols(self, pixels: U8, *, last: bool) -> None:
        """Find and keep the symbols of a strip of pixels; ``last`` states whether the strip is the image's last."""
        if pixels.strides[1] != 1 and pixels.strides[1:] != (3, 1):
            pixels = np.ascontiguousarray(pixels)
        header, columns, (height, width) = self._header, self._columns, pixels.shape[:2]
        h, v = header.components[0].horizontal, header.components[0].vertical
        interval, grey, rows = header.restart_interval, len(header.components) == 1, -(-height // (8 * v))
        if (pixels.ndim == 2) != grey or not (last or height % (8 * v) == columns % interval == 0):
            raise UsageError(
                f"a strip has shape {pixels.shape}, the restart interval is {interval}; give strips all grey or all "
                f"RGB, each but the last of a multiple of {8 * v} rows, and an interval that divides {columns}"
            )
        source = (pixels.__array_interface__["data"][0], *pixels.strides, *((0,) if grey else ()))
        blocks, segments = columns * rows * (1 if grey else h * v + 2), -(-columns * rows // interval)
        if self._scratch.size < MAX_SYMBOLS * blocks:
            self._scratch = np.empty(MAX_SYMBOLS * blocks, np.uint32)
        ends = np.empty(segments + 1, np.int64)
        shape = width, height, columns, rows, h, v
        find_symbols(source, shape, interval, self._divisors, self._scratch, ends, self._frequencies)
        symbols = self._scratch[: int(ends[-1])]
        self._found.append((symbols if last else symbols.copy(), ends))

    def write(self) -> TranscodedJpeg:
        """Choose the Huffman tables and write the JPEG; free the symbols of each strip once they are written."""
        counts, values = np.zeros((4, 16), np.uint8), np.zeros((4, 256), np.uint8)
        codes = np.zeros((4, 256), np.uint32)
        bits = choose_codes(self._frequencies, (counts, values, codes))
        header = self._header
        used = [(0, 0), (1, 0)] if len(header.components) == 1 else [(0, 0), (1, 0), (0, 1), (1, 1)]
        tables = {(kind, k): _table(counts[2 * kind + k], values[2 * kind + k]) for kind, k in used}
        selectors = tuple(TableSelector(c.id, c.quantization, c.quantization) for c in header.components)
        coding = CodingParameters(self._quantization, tables, selectors, b"\0\x3f\0", _JFIF, b"", 1)
        headers = write_headers(header, coding, tables, header.restart_interval)
        pieces: list[bytes | memoryview] = [headers]
        lengths: list[I64] = []
        before = 0
        while self._found:
            symbols, ends = self._found.popleft()
            segments = ends.size - 1
            # Upper bound of the bytes to write: stuffing at most doubles the ``bits`` of all strips' symbols.
            most = min(bits // 4, _MAX_BYTES * symbols.size)
            out, starts = np.empty(most + 4 * segments + 64, np.uint8), np.empty(segments + 1, np.int64)
            written = write_symbols(symbols, ends, codes, before, out, starts)
            pieces.append(out[:written].tobytes() if before or self._found else out[:written].data)
            lengths.append(starts[1:] - starts[:-1] - 2)
            before += segments
        jpeg = b"".join([*pieces, _END])
        return TranscodedJpeg(jpeg, replace(header, length=len(headers)), np.concatenate(lengths))


@lru_cache(maxsize=16)
def _quantization(quality: int) -> tuple[dict[int, bytes], U16]:
    """Return the bodies of DQT segments by destination, and results of ``make_divisors`` for luma and chroma."""
    scaled = scale_tables(quality)
    bodies = {k: bytes([k, *(table[at] for at in ZIGZAG.tolist())]) for k, table in enumerate(scaled)}
    return bodies, np.stack([make_divisors(table) for table in scaled])


def _table(counts: U8, symbols: U8) -> HuffmanTable:
    lengths = counts.tobytes()
    return HuffmanTable(lengths, symbols.tobytes()[: sum(lengths)])


def _header(width: int, height: int, factors: tuple[int, int], interval: int, *, grey: bool) -> Header:
    components = Component(1, *factors, 0), Component(2, 1, 1, 1), Component(3, 1, 1, 1)
    count = 1 if grey else 3
    return Header("baseline", 8, width, height, components[:count], count, interval, 0)
