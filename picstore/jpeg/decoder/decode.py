"""Decoding a training JPEG: the pixels that libjpeg-turbo gives, bit by bit, in one kernel call without the GIL.

Only what training JPEGs are is decoded: baseline, one scan, grey or YCbCr, four samplings. All else, and any damage, is
refused with a reason, and the caller may ask libjpeg. libjpeg-turbo reads Huffman codes by its slow path where there
are restart markers; docs/design.md has the figures.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError, UsageError
from picstore.jpeg import entropy
from picstore.jpeg.decoder import coefficients, parse, scan
from picstore.kernels.jit import array_at, kernel

BUFFER_TOO_SMALL, _NO_EOI = -20, -21
_REASONS = {
    entropy.BAD_CODE: "a code that its Huffman table lacks, or a block with more than 64 coefficients",
    entropy.TOO_SHORT: "its entropy-coded data ends early",
    entropy.BAD_MARKER: "restart markers out of order",
    entropy.TOO_MANY_SEGMENTS: "more restart markers than its headers announce",
    scan.LEFT_OVER: "a segment with more bytes than it needs",
    parse.DAMAGED_HEADER: "its headers are damaged",
    parse.UNSUPPORTED: "it is no baseline JPEG of 8 bits, one scan, grey or YCbCr, and 4:4:4, 4:2:2, 4:4:0 or 4:2:0",
    _NO_EOI: "it does not end with EOI",
}
_PADDING, _ZIGZAG = entropy.PADDING, coefficients.ZIGZAG
_u64, _u8 = np.uint64, np.uint8


class _Workspace(threading.local):
    """This thread's arrays; fresh ones would cost more than decoding small images."""

    def __init__(self) -> None:
        self.frame = np.zeros(parse.FRAME, np.int64)
        self._tables = np.zeros(coefficients.TABLES, np.uint8)
        self._plan = np.zeros(scan.PLAN, np.uint64)
        self._block = np.zeros(coefficients.WASTE + 8, np.int16)
        self._scratch = np.empty(1 << 18, np.uint8)
        self._segments = np.empty(1 << 10, np.int64)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What ``decode_stream`` works with."""
        return self.frame, self._tables, self._plan, self._block, self._scratch, self._segments

    def grow(self) -> int:
        """Where ``decode_stream`` had no room: make the arrays long enough; the bytes that the pixels take."""
        size, scratch, segments = self.frame[-3:].tolist()
        if len(self._scratch) < scratch:
            self._scratch = np.empty(2 * scratch, np.uint8)
        if len(self._segments) < segments:
            self._segments = np.empty(2 * segments, np.int64)
        return int(size)


WORKSPACE = _Workspace()
_NOWHERE = np.zeros(0, np.uint8)


def decode(jpeg: bytes | memoryview | U8, out: U8 | None = None) -> U8:
    """Decode a training JPEG to RGB; grey images get three equal channels.

    Args:
        jpeg: one whole stream, contiguous.
        out: contiguous uint8 buffer of one dimension to write to, at least as long as the pixels; a new one by default.

    Returns:
        uint8 (height, width, 3), a view of ``out``: the pixels of libjpeg-turbo's default decompression ("islow" DCT,
        "fancy" upsampling).

    Raises:
        ImageError: the stream is damaged, or none of those decoded here, or its pixels do not fit ``out``.
        UsageError: ``out`` is no such buffer.
    """
    if out is not None and (out.dtype != np.uint8 or out.ndim != 1 or not out.flags.carray):
        raise UsageError(f"decoding needs a contiguous uint8 buffer of one dimension, not {out.dtype} {out.shape}")
    source = np.frombuffer(jpeg, np.uint8)
    address = _u64(source.ctypes.data)
    pixels = _NOWHERE if out is None else out
    code = decode_stream(address, source.size, WORKSPACE.arrays, pixels)
    if code == BUFFER_TOO_SMALL:
        size = WORKSPACE.grow()
        if out is None:
            pixels = np.empty(size, np.uint8)
        elif len(out) < size:
            raise ImageError(f"does not decode: its pixels take {size} bytes, and there is room for {len(out)}")
        code = decode_stream(address, source.size, WORKSPACE.arrays, pixels)
    if code:
        raise ImageError(f"does not decode: {_REASONS[code]}")
    width, height = int(WORKSPACE.frame[parse.WIDTH]), int(WORKSPACE.frame[parse.HEIGHT])
    return pixels[: 3 * width * height].reshape(height, width, 3)


@kernel
def decode_stream(address, size, room, out):  # type: ignore[no-untyped-def]
    """Decode one stream; kernels may call it too.

    Args:
        address, size: of the stream; so numba need not compile anew for what cannot be written to.
        room: ``WORKSPACE.arrays``. The first takes what ``frame.read_frame`` finds, the second the tables.
        out: uint8, takes the pixels.

    Returns:
        0, or a negative code for a stream that is not decoded. ``BUFFER_TOO_SMALL``: an array is too short, and the
        last three numbers of the first array are the lengths that suffice, of ``out`` and of the last two arrays.
    """
    found, tables, plan, block, scratch, segments = room
    wrong = parse.read_frame(_u64(address), size, found, _u64(tables.ctypes.data))
    if wrong:
        return wrong
    source = array_at(_u64(address), size, np.uint8)
    if source[size - 2] != 0xFF or source[size - 1] != 0xD9:
        return _NO_EOI
    width, height, h, v = found[parse.WIDTH], found[parse.HEIGHT], found[parse.HORIZONTAL], found[parse.VERTICAL]
    mcus = ((width + 8 * h - 1) // (8 * h)) * ((height + 8 * v - 1) // (8 * v))
    if found[parse.INTERVAL] == 0:
        found[parse.INTERVAL] = mcus
    expected = (mcus + found[parse.INTERVAL] - 1) // found[parse.INTERVAL]
    left = size - found[parse.START]
    per_mcu = 1 if found[parse.COMPONENTS] == 1 else h * v + 2
    # Each block has at least a DC and an AC code, each marker two bytes; so what is allocated is bounded by the data.
    if 8 * left < 2 * per_mcu * mcus or left < 2 * (expected - 1):
        return entropy.TOO_SHORT
    first = scan.planes_length(found)
    needed = first + left + _PADDING
    found[parse.FRAME - 3], found[parse.FRAME - 2], found[parse.FRAME - 1] = 3 * width * height, needed, expected + 1
    if out.size < 3 * width * height or scratch.size < needed or segments.size < expected + 1:
        return BUFFER_TOO_SMALL
    flat = scratch[first:needed]
    count, length = entropy.unstuff(_u64(address), size, found[parse.START], flat, segments[: expected + 1])
    if count != expected:
        return count if count < 0 else entropy.TOO_SHORT
    for k in range(length, length + _PADDING):
        flat[k] = 0
    planes = _u64(scratch.ctypes.data)
    scan.make_plan(found, _u64(tables.ctypes.data), planes, plan)
    places = _u64(_ZIGZAG.ctypes.data), _u64(block.ctypes.data), planes, _u64(out.ctypes.data)
    return scan.read_scan(
        _u64(flat.ctypes.data), _u64(segments.ctypes.data), found, (_u64(plan.ctypes.data), per_mcu), places
    )
