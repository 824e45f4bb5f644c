"""Decoder of training JPEGs: the pixels of libjpeg-turbo, bit for bit, by kernels without the GIL.

One kernel opens a stream, and another decodes rows: all at once, or the rows that a resampler needs next.

Training JPEGs are baseline, in one scan, grey or YCbCr, of four samplings. Other and damaged JPEGs are rejected with a
reason, and the caller may use libjpeg instead. libjpeg-turbo is slower, because it has no fast path for Huffman codes
if there are restart markers. docs/archive/measurements.md has the figures.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError, UsageError
from picstore.jpeg import bit_reader
from picstore.jpeg.decoder import coefficients, parse, scan
from picstore.kernels.jit import array_at, device_function, kernel

BUFFER_TOO_SMALL, _NO_EOI, _OTHER_MARKER = -20, -21, -22
FACTORS = 1, 2, 4, 8  # possible divisors of an image's sides
FRAME = scan.STATE + 3
REASONS = {
    bit_reader.BAD_CODE: "a code that its Huffman table lacks, or a block with more than 64 coefficients",
    bit_reader.TOO_SHORT: "its entropy-coded data ends early",
    bit_reader.BAD_MARKER: "restart markers out of order",
    bit_reader.TOO_MANY_SEGMENTS: "more restart markers than its headers announce",
    scan.SURPLUS_BYTES: "a segment with more bytes than it needs",
    parse.DAMAGED_HEADER: "its headers are damaged",
    parse.UNSUPPORTED: "it is not a baseline JPEG of 8 bits, one scan, grey or YCbCr, and 4:4:4, 4:2:2, 4:4:0 or 4:2:0",
    _NO_EOI: "it does not end with EOI",
    _OTHER_MARKER: "its scan is followed by another marker than EOI",
}
# Error codes of streams that other decoders may decode: headers that this one rejects, or no EOI after the scan.
_OF_OTHERS = parse.DAMAGED_HEADER, parse.UNSUPPORTED, _NO_EOI, _OTHER_MARKER
_PAIR_ZIGZAG = coefficients.PAIR_ZIGZAG
_u64, _u8 = np.uint64, np.uint8


class NotTrainingJpeg(ImageError):
    """Error for a stream that this decoder does not support, such as a progressive JPEG; another decoder may."""


class _Workspace(threading.local):
    """Arrays that a thread keeps, because allocating them takes longer than decoding a small image."""

    def __init__(self) -> None:
        # Values of the headers, state of the scan; last, the lengths that pixels, ``_scratch`` and ``_segments`` need.
        self.frame = np.zeros(FRAME, np.int64)
        self._tables = np.zeros(coefficients.TABLES, np.uint8)
        self._plan = np.zeros(scan.PLAN, np.uint64)
        self._block = np.zeros(scan.BLOCKS * coefficients.BLOCK_PAIR, np.int16)
        self._scratch = np.empty(1 << 18, np.uint8)
        self._segments = np.empty(1 << 10, np.int64)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.frame, self._tables, self._plan, self._block, self._scratch, self._segments

    def grow(self) -> int:
        """Enlarge the arrays after ``open_stream`` returned BUFFER_TOO_SMALL; return the bytes that the pixels need."""
        size, scratch, segments = self.frame[-3:].tolist()
        if len(self._scratch) < scratch:
            self._scratch = np.empty(2 * scratch, np.uint8)
        if len(self._segments) < segments:
            self._segments = np.empty(2 * segments, np.int64)
        return int(size)


WORKSPACE = _Workspace()
_NO_PIXELS, _NO_SEGMENTS = np.zeros(0, np.uint8), np.zeros(0, np.int64)


def decode(jpeg: bytes | memoryview | U8, out: U8 | None = None, *, factor: int = 1) -> U8:
    """Decode a training JPEG (baseline, in one scan, grey or YCbCr) to RGB; grey images get three equal channels.

    Args:
        jpeg: contiguous bytes of one whole JPEG.
        out: contiguous one-dimensional uint8 array to decode into, at least as long as the result; by default, a new
            array.
        factor: divisor of the sides, 1, 2, 4 or 8; the quotients are rounded up.

    Returns:
        uint8 (⌈height / factor⌉, ⌈width / factor⌉, 3), a view of ``out``: the pixels of libjpeg-turbo's default
        decompression ("islow" DCT, "fancy" upsampling) at the scale 1 / factor.

    Raises:
        NotTrainingJpeg: the bytes may be a sound JPEG of another kind.
        ImageError: the JPEG is damaged, or its pixels do not fit ``out``.
        UsageError: ``out`` or ``factor`` is not a possible value.
    """
    if out is not None and (out.dtype != np.uint8 or out.ndim != 1 or not out.flags.carray):
        raise UsageError(f"decoding needs a contiguous uint8 buffer of one dimension, not {out.dtype} {out.shape}")
    if factor not in FACTORS:
        raise UsageError(f"factor is {factor!r}; possible are 1, 2, 4 and 8")
    _, code = _open(jpeg, factor)
    frame = WORKSPACE.frame
    width, height = frame[[scan.PIXELS_WIDTH, scan.PIXELS_HEIGHT]].tolist()
    size = 3 * width * height
    if not code:
        if out is not None and len(out) < size:
            raise ImageError(f"does not decode: its pixels take {size} bytes, and the buffer has {len(out)}")
        pixels = np.empty(size, np.uint8) if out is None else out
        frame[scan.OUT], frame[scan.RING] = pixels.ctypes.data, height
        code = decode_rows(frame.ctypes.data, height)
    if code:
        raise (NotTrainingJpeg if code in _OF_OTHERS else ImageError)(f"does not decode: {REASONS[code]}")
    return pixels[:size].reshape(height, width, 3)


def frame_size(jpeg: bytes | memoryview | U8) -> tuple[int, int] | None:
    """Return (width, height) of a training JPEG, from its headers.

    Return None for bytes that are not a training JPEG, or are fewer than its blocks need.
    """
    source = np.frombuffer(jpeg, np.uint8)
    code = open_stream(_u64(source.ctypes.data), source.size, 1, (*WORKSPACE.arrays[:-2], _NO_PIXELS, _NO_SEGMENTS))
    return (int(WORKSPACE.frame[parse.WIDTH]), int(WORKSPACE.frame[parse.HEIGHT])) if code == BUFFER_TOO_SMALL else None


def _open(jpeg: bytes | memoryview | U8, factor: int) -> tuple[U8, int]:
    """Call ``open_stream`` with this thread's workspace; return an array that keeps the stream alive, and the code."""
    source = np.frombuffer(jpeg, np.uint8)
    address = _u64(source.ctypes.data)
    code = open_stream(address, source.size, factor, WORKSPACE.arrays)
    if code == BUFFER_TOO_SMALL:
        WORKSPACE.grow()
        code = open_stream(address, source.size, factor, WORKSPACE.arrays)
    return source, code


@kernel("int64(uint64, int64, int64, Tuple((int64[::1], uint8[::1], uint64[::1], int16[::1], uint8[::1], int64[::1])))")
def open_stream(address, size, factor, workspace):
    """Parse a JPEG up to its first pixel, where ``decode_rows`` continues.

    Args:
        address, size: address and size in bytes of the JPEG.
        factor: divisor of the sides, 1, 2, 4 or 8.
        workspace: ``WORKSPACE.arrays``. The first array takes the headers' values (``parse.parse_frame``) and the
            scan's state, the second array the tables. All arrays must stay unchanged until the last row is decoded.

    Returns:
        0, or a negative code if the JPEG cannot be decoded. For ``BUFFER_TOO_SMALL``, the last three numbers of the
        first array are the lengths that the pixels and the last two arrays need.
    """
    frame, tables, _, _, scratch, segments = workspace
    code = parse.parse_frame(_u64(address), size, frame, _u64(tables.ctypes.data))
    if code:
        return code
    source = array_at(_u64(address), size, np.uint8)
    if source[size - 2] != 0xFF or source[size - 1] != 0xD9:
        return _NO_EOI
    left = size - frame[parse.START]
    expected = parse.count_segments(frame, left)
    if expected < 0:
        return expected
    if not has_room(frame, left, expected, factor, scratch, segments):
        return BUFFER_TOO_SMALL
    flat = scratch[scan.planes_length(frame) :]
    count, length, end = bit_reader.unstuff(_u64(address), size, frame[parse.START], flat, segments[: expected + 1])
    if count != expected:
        return count if count < 0 else bit_reader.TOO_SHORT
    while source[end] == 0xFF and end < size - 1:
        end += 1
    if source[end] != 0xD9:
        return _OTHER_MARKER
    begin(workspace, length)
    return 0


@device_function
def has_room(frame, size, count, factor, scratch, segments):
    """Return whether ``scratch`` and ``segments`` are long enough for ``count`` segments of ``size`` bytes in all.

    Write to ``frame`` the image's sizes at 1 / ``factor``, and the lengths that arrays need for decoding.
    """
    scan.set_scale(frame, factor)
    needed = scan.planes_length(frame) + size + bit_reader.PADDING
    pixels = 3 * frame[scan.PIXELS_WIDTH] * frame[scan.PIXELS_HEIGHT]
    frame[FRAME - 3], frame[FRAME - 2], frame[FRAME - 1] = pixels, needed, count + 1
    return scratch.size >= needed and segments.size > count


@device_function
def begin(workspace, length):
    """Begin the scan whose data, ``length`` bytes without stuffing and markers, follows the planes in the workspace."""
    frame, tables, plan, block, scratch, segments = workspace
    flat = scratch[scan.planes_length(frame) :]
    flat[length : length + bit_reader.PADDING] = 0
    block[:] = 0
    addresses = (
        _u64(flat.ctypes.data),
        _u64(segments.ctypes.data),
        _u64(_PAIR_ZIGZAG.ctypes.data),
        _u64(block.ctypes.data),
        _u64(scratch.ctypes.data),
    )
    scan.begin_scan(frame, _u64(tables.ctypes.data), addresses, plan)


@kernel("int64(uint64, int64)")
def decode_rows(state, rows):
    """Continue decoding an opened JPEG until ``rows`` rows of pixels are written, or all rows of the image.

    Args:
        state: address of the workspace's first array. The caller sets ``scan.OUT`` in this array to the address of a
            ring buffer for rows of pixels, and ``scan.RING`` to the buffer's number of rows.
        rows: number of rows that all calls so far write. Up to ``scan.MOST_SURPLUS_ROWS`` more rows are written.

    Returns:
        0, or a negative code of damage.
    """
    return scan.decode_scan(array_at(state, FRAME, np.int64), rows)
