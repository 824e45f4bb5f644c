"""Vertical and horizontal pass of ``resample.py``, and the copies between the passes.

The vertical pass comes first, along the contiguous bytes of rows. It keeps 6 fractional bits: pixels are rounded to 8
bits once, and over- and undershoots of bicubic and Lanczos are clipped only at the end, as torch does for floats (for
bytes torch and Pillow clip after each pass). For the horizontal pass ``BLOCK`` rows of an output column are neighbors
in memory, so each step is one operation on vectors of neighbors; docs/archive/measurements.md has other ways.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.kernels.jit import device_function
from picstore.kernels.simd import Vector, VectorMemory, load_byte, store_i16, transposed, vector_function
from picstore.kernels.strided import put_bytes

# Number of rows, and of pixels of each row, that ``_interleave_pixels`` transposes from rows to columns at a time.
GROUP = 8
PIXELS = 16
# Number of output rows that the horizontal pass computes at a time, a block: 4 groups of 8 rows.
BLOCK = 32
# Number of samples in a column of a block: red, green and blue of one pixel in each of the BLOCK rows.
COLUMN = 3 * BLOCK
# Number of samples (levels of a channel) of a row that the vertical pass computes at a time.
_SAMPLES = 64

# Types to which kernels cast integers, because numba's constants are int64, and a CPU's vector holds fewer int64.
_i16, _i32, _u64 = np.int16, np.int32, np.uint64
# Number to add to sums of the vertical pass, which have 14 fractional bits, to round them to 6 fractional bits.
_HALF_ROW = 1 << 7
# Number to add to sums of the horizontal pass, which have 6 + 14 fractional bits, to round them to whole levels.
_HALF_PIXEL = np.int32(1 << 19)


@vector_function(5)
def _sum_rows(memory: VectorMemory, rows: Any, weights: Any, pairs: Any, offset: Any, line: Any) -> None:
    """Compute _SAMPLES samples of a row in the vertical pass, in fixed point with 6 fractional bits.

    Args:
        rows: address of an array of the source rows' addresses, uint64.
        weights: address of the source rows' weights, int16.
        pairs: number of pairs of source rows.
        offset: offset in bytes of the first sample in each source row.
        line: address at which to store the samples, int16.
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
def sum_output_row(source, low, first, count, weights, rows, line):
    """Compute a row of the vertical pass, from source pixel ``low`` on, in fixed point with 6 fractional bits.

    Args:
        source: uint8 (rows, width, 3), a ring buffer: image row r is at r modulo the number of rows.
        low: first pixel used of each source row.
        first, count: index in the image of the first source row, and number of source rows.
        weights: weights of the source rows, int16, followed by zeros.
        rows: uint64 (at least count + 1,), scratch memory.
        line: int16, to which the samples are written.
    """
    begin, stride = _u64(source.ctypes.data + 3 * low), 3 * source.shape[1]
    for k in range(count):
        rows[k] = begin + _u64((first + k) % source.shape[0] * stride)
    rows[count] = rows[max(count - 1, 0)]
    table, factors, pairs, out = _u64(rows.ctypes.data), _u64(weights.ctypes.data), (count + 1) // 2, line.ctypes.data
    n = line.size
    for at in range(0, n // _SAMPLES * _SAMPLES, _SAMPLES):
        _sum_rows(table, factors, _u64(pairs), _u64(at), _u64(out + 2 * at))
    # For the rest of the row, compute its last _SAMPLES samples, although some of them are already computed.
    if n % _SAMPLES and n >= _SAMPLES:
        _sum_rows(table, factors, _u64(pairs), _u64(n - _SAMPLES), _u64(out + 2 * (n - _SAMPLES)))
    elif n % _SAMPLES:
        for i in range(n):
            total = _HALF_ROW
            for k in range(count):
                total += np.int64(weights[k]) * load_byte(rows[k] + _u64(i))
            store_i16(_u64(out + 2 * i), _i16(total >> 8))


@device_function
def add_fill(line, fill, missing):
    """Add ``fill`` times ``missing``, the weight of pixels outside of the image, to a row of the vertical pass."""
    for c in range(3):
        level = _i16((fill[c] * missing + _i32(_HALF_ROW)) >> _i32(8))
        for i in range(c, line.size, 3):
            line[i] += level


@vector_function(3)
def _interleave_pixels(memory: VectorMemory, lines: Any, stride: Any, out: Any) -> None:
    """Write 16 pixels, int16, of each of 8 rows, which begin ``stride`` bytes apart, to 16 columns of a block."""
    for third in range(3):
        starts = [memory.offset(memory.offset(lines, stride, k), 32 * third) for k in range(GROUP)]
        rows = [memory.load(start, 16, 16) for start in starts]
        for k, two in enumerate(transposed(rows)):
            for half in range(2):
                sample = 16 * third + 8 * half + k
                target = memory.offset(out, 2 * (COLUMN * (sample // 3) + GROUP * (sample % 3)))
                memory.store(target, two.shuffled(two, range(8 * half, 8 * half + 8)))


@device_function
def interleave(lines, width, columns, group):
    """Transpose 8 rows of ``width`` pixels to the columns of a block, from the block's row 8 * ``group`` on.

    Up to PIXELS - 1 columns beyond ``width`` are overwritten.
    """
    source, target = _u64(lines.ctypes.data), _u64(columns.ctypes.data + 6 * GROUP * group)
    for x in range(0, width, PIXELS):
        _interleave_pixels(source + _u64(6 * x), _u64(2 * lines.shape[1]), target + _u64(2 * COLUMN * x))


@vector_function(5)
def _sum_columns(memory: VectorMemory, column: Any, weights: Any, pairs: Any, begin: Any, out: Any) -> None:
    """Compute a column of a block of output rows, as a weighted sum of source columns.

    Args:
        column: address of the first source column, int16 (COLUMN,).
        weights: address of the source columns' weights, int16.
        pairs: number of pairs of source columns.
        begin: address of the sums' initial values, int32 (COLUMN // 2,). Each value is used for two samples, 4 places
            apart.
        out: address at which to store the output column, uint8 (COLUMN,).
    """
    parts = range(0, 2 * COLUMN, 32)  # offsets in bytes of vectors of 16 samples in a column

    def add_pair(k: Any, sums: list[Vector]) -> list[Vector]:
        two = memory.load(memory.offset(weights, k, 4), 1, 32)
        weight = two.shuffled(two, [0] * 8).cast(16)
        here = memory.offset(column, k, 4 * COLUMN)
        for part in parts:
            one = memory.load(memory.offset(here, part), 16, 16)
            other = memory.load(memory.offset(here, 2 * COLUMN + part), 16, 16)
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
def sum_output_columns(columns, axis, taps, flip, fill, total, block):
    """Compute all output columns of a block, uint8, as weighted sums of source columns: the horizontal pass.

    ``axis`` is a result of ``axis_weights``: each output column's first source column, weights and missing weight.
    ``taps`` is the largest number of source columns of an output column. ``total`` is scratch memory.
    """
    first, weights, missing = axis
    source, target, begin = _u64(columns.ctypes.data), _u64(block.ctypes.data), _u64(total.ctypes.data)
    row, pairs, plain = _u64(2 * weights.shape[1]), _u64((taps + 1) // 2), True
    total[:] = _HALF_PIXEL
    for x in range(first.size):
        if missing[x] or not plain:
            for j in range(COLUMN // 2):
                total[j] = _HALF_PIXEL + (fill[j // 4 % 3] << _i32(6)) * missing[x]
            plain = missing[x] == 0
        to = first.size - 1 - x if flip else x
        column, weight = source + _u64(2 * COLUMN * first[x]), _u64(weights.ctypes.data) + row * _u64(x)
        _sum_columns(column, weight, pairs, begin, target + _u64(COLUMN * to))


@vector_function(3)
def _transpose_columns(memory: VectorMemory, columns: Any, out: Any, stride: Any) -> None:
    """Transpose 8 bytes of each of 16 columns of a block to 8 rows of 16 bytes, which begin ``stride`` bytes apart."""
    eights = [memory.load(memory.offset(columns, COLUMN * x), 8, 8) for x in range(PIXELS)]
    twos = [eights[x].shuffled(eights[x + 1], range(16)) for x in range(0, PIXELS, 2)]
    fours = [twos[x].shuffled(twos[x + 4], range(32)) for x in range(4)]
    for k, two in enumerate(transposed(fours)):
        words = two.cast(64)
        for half in range(2):
            row = memory.offset(out, stride, 2 * k + half)
            memory.store(row, words.shuffled(words, (half, 2 + half)))


@device_function
def write_rows(block, rows, target, top, bottom):
    """Write the columns of a block as rows of the output.

    Args:
        block: uint8 (columns, COLUMN), where columns is at least the output's width rounded up to PIXELS.
        rows: uint8 (8, columns), scratch memory.
        target: ``strided_image`` of the output.
        top, bottom: first row of the output to write, and last + 1.
    """
    source, first, stride, width = _u64(block.ctypes.data), _u64(rows.ctypes.data), rows.shape[1], target[6]
    for group in range((bottom - top + GROUP - 1) // GROUP):
        y = top + GROUP * group
        for c in range(3):
            for x in range(0, width, PIXELS):
                part = source + _u64(COLUMN * x + GROUP * (3 * group + c))
                _transpose_columns(part, first + _u64(x), _u64(stride))
            for r in range(min(GROUP, bottom - y)):
                to = target[0] + c * target[1] + (y + r) * target[2]
                put_bytes(rows.ctypes.data + r * stride, width, to, target[3])
