"""Resampling of a decoded image in one numba kernel: crop, resize, flips and padding.

``filters.py`` has the filters. ``convert`` resizes by Lanczos, the sharpest one, of three times as many pixels as the
triangle of bilinear interpolation.

All arithmetic on pixels is in integers, with 14-bit weights, so no result depends on the machine's vector unit. The
vertical pass comes first, along the contiguous bytes of rows. It keeps 6 fractional bits: pixels are rounded to 8 bits
once, and bicubic's and Lanczos' over- and undershoots are clipped at the end only, as torch does for floats (for bytes
torch and Pillow clip after each pass). For the horizontal pass ``_BLOCK`` rows of an output column are neighbors in
memory, so each step is one operation on vectors of neighbors; docs/measurements.md has the figures of alternatives.

Source rows are read from the first to the last, and only within a window of the filter's height. So a decoder need not
have made all of an image before: it is called for rows as they are needed, and a few of them stay in the cache.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import U8
from picstore.errors import UsageError
from picstore.kernels.filter_weights import axis_weights
from picstore.kernels.filters import BILINEAR, LANCZOS, MAX_COORDINATE, NEAREST
from picstore.kernels.jit import caller, device_function, kernel
from picstore.kernels.simd import (
    Vector,
    VectorMemory,
    load_byte,
    store_i16,
    transposed,
    vector_function,
)
from picstore.kernels.strided import put_bytes, strided_image

_GROUP = 8  # rows that are interleaved at once,
_PIXELS = 16  # and their pixels
_BLOCK = 32  # rows that the horizontal pass takes at once, in 4 groups
_COLUMN = 3 * _BLOCK  # samples of a column of a block
_SAMPLES = 64  # samples of rows that the vertical pass takes at once

# numba's integer constants are 64 bits wide, which would halve the vector width.
_i16, _i32, _u8, _u64 = np.int16, np.int32, np.uint8, np.uint64
_HALF_ROW = 1 << 7  # rounds the vertical pass: of 14 fractional bits 6 are kept
_HALF_PIXEL = np.int32(1 << 19)  # rounds the horizontal pass: half a grey level with 6 + 14 fractional bits
_BLACK = (0, 0, 0)
_NO_DECODER = 0, 0

# A decoder of the rows of ``source``: takes the address of its state and the number of rows that must have been
# written since the first; returns 0, or another number for damage.
_decode_rows = caller("int64(uint64, int64)")


def resample(
    source: U8,
    box: npt.ArrayLike,
    clip: npt.ArrayLike,
    out: U8,
    *,
    interpolation: int = BILINEAR,
    antialias: bool = True,
    flips: tuple[bool, bool] = (False, False),
    fill: npt.ArrayLike = _BLACK,
) -> None:
    """Resample a box of an image into ``out``, without the GIL.

    Args:
        source: uint8 (height, width, 3), C-contiguous.
        box: left, top, width, height of the region that becomes ``out``, in source pixels; may be fractional and lie
            outside of the image.
        clip: left, top, right, bottom in whole source pixels. The filter uses pixels within it only; pixels outside of
            the image count as ``fill``. An output pixel whose center lies outside of the clip is ``fill``.
        out: uint8 (3, H, W), any strides.
        interpolation: one of ``filters.py``.
        antialias: widen the filter where the box is larger than the output.
        flips: mirror the output left to right, and top to bottom.
        fill: red, green, blue, 0 to 255.

    Raises:
        UsageError: an array has another shape, dtype or layout or is empty, the box is empty, a coordinate exceeds
            2**24 pixels, ``fill`` is not within 0 to 255, or there is no such interpolation.
    """
    if source.ndim != 3 or source.shape[2] != 3 or source.dtype != np.uint8 or not source.flags.c_contiguous:
        raise UsageError(f"source is {source.dtype} {source.shape}; give contiguous uint8 of shape (height, width, 3)")
    if out.ndim != 3 or out.shape[0] != 3 or out.dtype != np.uint8:
        raise UsageError(f"out is {out.dtype} {out.shape}; give uint8 of shape (3, height, width)")
    if source.size == 0 or out.size == 0:
        raise UsageError(f"source has shape {source.shape} and out {out.shape}; give each at least a pixel")
    region = np.ascontiguousarray(box, dtype=np.float64)
    visible = np.ascontiguousarray(clip, dtype=np.int64)
    color = np.array(fill, dtype=np.int32)
    if region.shape != (4,) or visible.shape != (4,) or color.shape != (3,):
        raise UsageError(
            f"box, clip and fill have shapes {region.shape}, {visible.shape} and {color.shape}; give 4, 4 and 3 numbers"
        )
    mirrored = bool(flips[0]), bool(flips[1])
    rows = len(source), *_NO_DECODER
    if not resample_box(
        source, rows, region, visible, mirrored, int(interpolation), bool(antialias), color, strided_image(out)
    ):
        raise UsageError(
            f"box {region} is empty, a coordinate of it or of clip {visible} exceeds {MAX_COORDINATE}, "
            f"fill {color} is not within 0 to 255, or interpolation {interpolation} is unknown"
        )


@device_function
def _source_range(first, count):  # type: ignore[no-untyped-def]
    """Find the source pixels with weight: first, last + 1 and their greatest count; 0, 0, 0 without any.

    Rebases ``first`` to the first of them.
    """
    low = 0
    high = 0
    taps = 0
    for i in range(first.size):
        if count[i]:
            low = min(low, first[i]) if taps else first[i]
            high = max(high, first[i] + count[i])
            taps = max(taps, count[i])
    for i in range(first.size):
        first[i] = max(first[i] - low, 0)
    return low, high, taps


@vector_function(5)
def _sum_rows(memory: VectorMemory, rows: Any, weights: Any, pairs: Any, offset: Any, line: Any) -> None:
    """Make _SAMPLES samples of an output row, with 6 fractional bits.

    Args:
        rows: address of the addresses of the source rows, uint64.
        weights: address of the rows' weights, int16.
        pairs: half the number of rows.
        offset: of the first sample in the rows.
        line: address of the output, int16.
    """
    parts = range(0, _SAMPLES, 16)

    def add_pair(k: Any, sums: list[Vector]) -> list[Vector]:
        two = memory.load(memory.offset(weights, k, 4), 1, 32)
        weight = two.shuffled(two, [0] * 8).cast(16)
        upper, lower = (
            memory.offset(memory.load_number(memory.offset(memory.offset(rows, k, 16), 8 * row)), offset)
            for row in range(2)
        )
        for part in parts:
            one, other = (
                memory.load(memory.offset(row, part), 16, 8).widened(16, signed=False) for row in (upper, lower)
            )
            for half, products in enumerate(one.interleaved_sums(other, weight)):
                sums[part // 8 + half] += products
        return sums

    first = memory.zeros(8, 32) + _HALF_ROW
    sums = [each >> 8 for each in memory.repeat(pairs, [first] * (_SAMPLES // 8), add_pair)]
    for part in parts:
        memory.store(memory.offset(line, 2 * part), sums[part // 8].packed(sums[part // 8 + 1]))


@device_function
def _vertical(source, low, first, count, weights, rows, line):  # type: ignore[no-untyped-def]
    """One output row, of the pixels from ``low`` on, with 6 fractional bits.

    Args:
        source: uint8 (rows, width, 3), of which row r of the image is row r modulo their number.
        low: first pixel of a row.
        first, count: source rows, of the image.
        weights: theirs, int16, and zeros.
        rows: uint64 (at least count + 1,), scratch.
        line: int16, takes the samples.
    """
    begin, stride = _u64(source.ctypes.data + 3 * low), 3 * source.shape[1]
    for k in range(count):
        rows[k] = begin + _u64((first + k) % source.shape[0] * stride)
    rows[count] = rows[max(count - 1, 0)]
    table, factors, pairs, out = _u64(rows.ctypes.data), _u64(weights.ctypes.data), (count + 1) // 2, line.ctypes.data
    n = line.size
    for at in range(0, n // _SAMPLES * _SAMPLES, _SAMPLES):
        _sum_rows(table, factors, _u64(pairs), _u64(at), _u64(out + 2 * at))
    if n % _SAMPLES and n >= _SAMPLES:  # the last samples overlap
        _sum_rows(table, factors, _u64(pairs), _u64(n - _SAMPLES), _u64(out + 2 * (n - _SAMPLES)))
    elif n % _SAMPLES:
        for i in range(n):
            total = _HALF_ROW
            for k in range(count):
                total += np.int64(weights[k]) * load_byte(rows[k] + _u64(i))
            store_i16(_u64(out + 2 * i), _i16(total >> 8))


@device_function
def _add_fill(line, fill, missing):  # type: ignore[no-untyped-def]
    """Add ``fill`` with the missing weight to a row of the vertical pass."""
    for c in range(3):
        level = _i16((fill[c] * missing + _i32(_HALF_ROW)) >> _i32(8))
        for i in range(c, line.size, 3):
            line[i] += level


@vector_function(3)
def _interleave_pixels(memory: VectorMemory, lines: Any, stride: Any, out: Any) -> None:
    """Transpose 8 rows of 48 samples, int16, with ``stride`` bytes from row to row, to a group of 16 columns."""
    for third in range(3):
        starts = [memory.offset(memory.offset(lines, stride, k), 32 * third) for k in range(_GROUP)]
        rows = [memory.load(start, 16, 16) for start in starts]
        for k, two in enumerate(transposed(rows)):
            for half in range(2):
                sample = 16 * third + 8 * half + k
                target = memory.offset(out, 2 * (_COLUMN * (sample // 3) + _GROUP * (sample % 3)))
                memory.store(target, two.shuffled(two, range(8 * half, 8 * half + 8)))


@device_function
def _interleave(lines, width, columns, group):  # type: ignore[no-untyped-def]
    """Copy 8 rows to ``group`` of each column; what lies after the last column is overwritten too."""
    source, target = _u64(lines.ctypes.data), _u64(columns.ctypes.data + 6 * _GROUP * group)
    for x in range(0, width, _PIXELS):
        _interleave_pixels(source + _u64(6 * x), _u64(2 * lines.shape[1]), target + _u64(2 * _COLUMN * x))


@vector_function(5)
def _sum_columns(memory: VectorMemory, column: Any, weights: Any, pairs: Any, begin: Any, out: Any) -> None:
    """Make an output column of a block.

    Args:
        column: address of the first source column, int16 (_COLUMN,).
        weights: address of the source columns' weights, int16.
        pairs: half the number of source columns.
        begin: address of the sums' initial numbers, int32 (_COLUMN // 2,), each for a number and the fourth after it.
        out: address of the output column, uint8 (_COLUMN,).
    """
    parts = range(0, 2 * _COLUMN, 32)  # bytes

    def add_pair(k: Any, sums: list[Vector]) -> list[Vector]:
        two = memory.load(memory.offset(weights, k, 4), 1, 32)
        weight = two.shuffled(two, [0] * 8).cast(16)
        here = memory.offset(column, k, 4 * _COLUMN)
        for part in parts:
            one = memory.load(memory.offset(here, part), 16, 16)
            other = memory.load(memory.offset(here, 2 * _COLUMN + part), 16, 16)
            for half, products in enumerate(one.interleaved_sums(other, weight)):
                sums[part // 16 + half] += products
        return sums

    first = [memory.load(memory.offset(begin, part), 8, 32) for part in parts for _ in range(2)]
    sums = [each >> 20 for each in memory.repeat(pairs, first, add_pair)]
    levels = [sums[k].packed(sums[k + 1]) - 128 for k in range(0, len(sums), 2)]
    for k in range(0, len(levels), 2):
        pixels = levels[k].packed(levels[k + 1]) ^ -128
        words = pixels.cast(64)
        memory.store(memory.offset(out, 16 * k), words.shuffled(words, (0, 2, 1, 3)))


@device_function
def _horizontal(columns, axis, taps, flip, fill, total, block):  # type: ignore[no-untyped-def]
    """All samples of each output column of a block, as bytes, from its source columns."""
    first, weights, missing = axis
    source, target, begin = _u64(columns.ctypes.data), _u64(block.ctypes.data), _u64(total.ctypes.data)
    row, pairs, plain = _u64(2 * weights.shape[1]), _u64((taps + 1) // 2), True
    total[:] = _HALF_PIXEL
    for x in range(first.size):
        if missing[x] or not plain:
            for j in range(_COLUMN // 2):
                total[j] = _HALF_PIXEL + (fill[j // 4 % 3] << _i32(6)) * missing[x]
            plain = missing[x] == 0
        to = first.size - 1 - x if flip else x
        column, weight = source + _u64(2 * _COLUMN * first[x]), _u64(weights.ctypes.data) + row * _u64(x)
        _sum_columns(column, weight, pairs, begin, target + _u64(_COLUMN * to))


@vector_function(3)
def _transpose_columns(memory: VectorMemory, columns: Any, out: Any, stride: Any) -> None:
    """Write 8 bytes of 16 columns of a block as 8 rows of 16 bytes, with ``stride`` bytes from row to row."""
    eights = [memory.load(memory.offset(columns, _COLUMN * x), 8, 8) for x in range(_PIXELS)]
    twos = [eights[x].shuffled(eights[x + 1], range(16)) for x in range(0, _PIXELS, 2)]
    fours = [twos[x].shuffled(twos[x + 4], range(32)) for x in range(4)]
    for k, two in enumerate(transposed(fours)):
        words = two.cast(64)
        for half in range(2):
            row = memory.offset(out, stride, 2 * k + half)
            memory.store(row, words.shuffled(words, (half, 2 + half)))


@device_function
def _write_rows(block, rows, target, top, bottom):  # type: ignore[no-untyped-def]
    """Write a block's columns as rows.

    Args:
        block: uint8 (at least the width rounded up to _PIXELS, _COLUMN).
        rows: uint8 (8, as many), scratch.
        target: ``strided_image`` of the output.
        top, bottom: its rows.
    """
    source, first, stride, width = _u64(block.ctypes.data), _u64(rows.ctypes.data), rows.shape[1], target[6]
    for group in range((bottom - top + _GROUP - 1) // _GROUP):
        y = top + _GROUP * group
        for c in range(3):
            for x in range(0, width, _PIXELS):
                part = source + _u64(_COLUMN * x + _GROUP * (3 * group + c))
                _transpose_columns(part, first + _u64(x), _u64(stride))
            for r in range(min(_GROUP, bottom - y)):
                to = target[0] + c * target[1] + (y + r) * target[2]
                put_bytes(rows.ctypes.data + r * stride, width, to, target[3])


@device_function
def _copy_box(source, rows, left, top, flip, row, target):  # type: ignore[no-untyped-def]
    """Copy a box of whole pixels without resampling; returns whether its rows decode."""
    height, width = target[5], target[6]
    for y in range(height):
        if rows[1] and _decode_rows(rows[1], (_u64(rows[2]), top + y + 1)):
            return False
        pixels = source[(top + y) % source.shape[0], left : left + width]
        for c in range(3):
            if flip:
                for x in range(width):
                    row[x] = pixels[width - 1 - x, c]
            else:
                for x in range(width):
                    row[x] = pixels[x, c]
            put_bytes(row.ctypes.data, width, target[0] + c * target[1] + y * target[2], target[3])
    return True


@device_function
def _fill(fill, row, target):  # type: ignore[no-untyped-def]
    """Fill the output with a color."""
    for c in range(3):
        row[:] = _u8(fill[c])
        for y in range(target[5]):
            put_bytes(row.ctypes.data, target[6], target[0] + c * target[1] + y * target[2], target[3])


@device_function
def _upside_down(target):  # type: ignore[no-untyped-def]
    """Describe an output of which the last row is the first: rows are made in the order of the source."""
    turned = target.copy()
    turned[0] += (target[5] - 1) * target[2]
    turned[2] = -target[2]
    return turned


@device_function
def _is_valid(box, clip, fill):  # type: ignore[no-untyped-def]
    """Whether the box is not empty, coordinates are bounded and fill is bytes; a NaN fails every comparison."""
    for c in range(3):
        if not 0 <= fill[c] <= 255:
            return False
    for k in range(4):
        if not (-MAX_COORDINATE <= box[k] <= MAX_COORDINATE and -MAX_COORDINATE <= clip[k] <= MAX_COORDINATE):
            return False
    return box[2] > 0 and box[3] > 0


@device_function
def _is_copy_box(size, box, clip, target):  # type: ignore[no-untyped-def]
    left, top, width, height = box[0], box[1], box[2], box[3]
    return (
        width == target[6]
        and height == target[5]
        and left == math.floor(left)
        and top == math.floor(top)
        and left >= max(clip[0], 0)
        and top >= max(clip[1], 0)
        and left + width <= min(clip[2], size[0])
        and top + height <= min(clip[3], size[1])
    )


@kernel(
    "boolean(uint8[:, :, ::1], UniTuple(int64, 3), float64[::1], int64[::1], UniTuple(boolean, 2), int64, boolean, "
    "int32[::1], int64[::1])"
)
def resample_box(  # type: ignore[no-untyped-def]  # noqa: PLR0913 - a kernel's arguments are flat
    source, rows, box, clip, flips, interpolation, antialias, fill, target
):
    """Resample as ``resample`` does, without checks of shapes and dtypes; for kernels too.

    Args:
        source, box, clip, flips, interpolation, antialias, fill: as for ``resample``.
        rows: of the image; then the addresses of the decoder that writes them to ``source`` as they are needed, and of
            its state, or two zeros. Row r is written in the place of row r modulo the rows of ``source``, which are as
            many as ``most_taps`` and as the decoder writes beyond what it is asked for.
        target: ``strided_image`` of the output.

    Returns:
        Whether box, clip, interpolation and fill are valid, the rows decode, and the output is written.
    """
    flip, upside_down = flips
    if not _is_valid(box, clip, fill) or not NEAREST <= interpolation <= LANCZOS:
        return False
    height, width = target[5], target[6]
    if upside_down:
        target = _upside_down(target)
    byte = np.empty(width, np.uint8)
    if _is_copy_box((source.shape[1], rows[0]), box, clip, target):
        return _copy_box(source, rows, int(box[0]), int(box[1]), flip, byte, target)
    x_first, x_count, x_weights, x_missing = axis_weights(
        box[0], box[2], clip[0], clip[2], source.shape[1], interpolation, antialias, width
    )
    y_first, y_count, y_weights, y_missing = axis_weights(
        box[1], box[3], clip[1], clip[3], rows[0], interpolation, antialias, height
    )
    low, high, taps = _source_range(x_first, x_count)
    if high == 0:
        _fill(fill, byte, target)
        return True
    samples = 3 * (high - low)
    lines = np.zeros((_GROUP, samples + 3 * _PIXELS), np.int16)
    columns = np.zeros((high - low + taps + _PIXELS, _COLUMN), np.int16)  # zero weights read past the last column
    addresses = np.zeros(y_weights.shape[1], np.uint64)
    total = np.empty(_COLUMN // 2, np.int32)
    block = np.empty((width + _PIXELS, _COLUMN), np.uint8)
    scratch = np.empty((_GROUP, width + _PIXELS), np.uint8)
    for top in range(0, height, _BLOCK):
        bottom = min(top + _BLOCK, height)
        for y in range(top, bottom):
            if rows[1] and _decode_rows(rows[1], (_u64(rows[2]), y_first[y] + y_count[y])):
                return False
            line = lines[y % _GROUP, :samples]
            _vertical(source, low, y_first[y], y_count[y], y_weights[y], addresses, line)
            if y_missing[y]:
                _add_fill(line, fill, y_missing[y])
            if y % _GROUP == _GROUP - 1 or y == bottom - 1:
                _interleave(lines, high - low, columns, (y - top) // _GROUP)
        _horizontal(columns, (x_first, x_weights, x_missing), taps, flip, fill, total, block)
        _write_rows(block, scratch, target, top, bottom)
    return True
