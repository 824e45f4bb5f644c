"""Equalization, contrast stretching and sharpening of an image in place, in numba: torchvision's, to the bit."""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, kernel
from picstore.kernels.simd import load_native_u64

_LEVELS = 256
_TABLES = 8  # histograms, one for each byte of a word: an increment waits for the last one of the same counter

_f32, _i32, _u8, _u64 = np.float32, np.int32, np.uint8, np.uint64
_LOW = np.uint64(0xFF)
_TOP, _PER_LEVEL = np.float32(255), np.float32(1 / 255)
_FOUR, _THIRTEENTH = np.float32(4), np.float32(1 / 13)  # of a filter with 5 in the middle and 1 around it


@device_function
def _count_levels(plane, counts):
    """Add the levels of a plane to a histogram for each byte of a word, int32 (8, 256)."""
    address, words = plane.ctypes.data, plane.size // 8
    for k in range(words):
        word = load_native_u64(_u64(address + 8 * k))
        for j in range(_TABLES):
            counts[j, (word >> _u64(8 * j)) & _LOW] += _i32(1)
    for i in range(8 * words, plane.size):
        counts[0, plane[i]] += _i32(1)


@device_function
def _equalizing_table(counts, table):
    """Write the level that each level becomes; False if all stay as they are."""
    total, last = 0, 0
    for level in range(_LEVELS):
        count = 0
        for j in range(_TABLES):
            count += counts[j, level]
        counts[0, level] = count
        total += count
        last = count if count else last
    step = (total - last) // 255
    if step == 0:
        return False
    below = step // 2
    for level in range(_LEVELS):
        table[level] = min(below // step, 255)
        below += counts[0, level]
    return True


@kernel("(uint8[:, :, ::1],)")
def equalize(image):
    """Equalize the histogram of each channel.

    Args:
        image: uint8 (3, height, width), C-contiguous.
    """
    counts, table = np.empty((_TABLES, _LEVELS), np.int32), np.empty(_LEVELS, np.uint8)
    planes = image.reshape(3, image.shape[1] * image.shape[2])
    for c in range(3):
        plane = planes[c]
        counts[:] = 0
        _count_levels(plane, counts)
        if _equalizing_table(counts, table):
            for i in range(plane.size):
                plane[i] = table[plane[i]]


@kernel("(uint8[:, :, ::1],)")
def stretch_contrast(image):
    """Map the least and the greatest level of each channel to 0 and 255.

    Args:
        image: uint8 (3, height, width), C-contiguous.
    """
    planes = image.reshape(3, image.shape[1] * image.shape[2])
    for c in range(3):
        plane = planes[c]
        low, high = _u8(255), _u8(0)
        for i in range(plane.size):
            x = plane[i]
            low = x if x < low else low
            high = x if x > high else high
        if low < high:
            start, scale = _f32(low), (_f32(high) - _f32(low)) * _PER_LEVEL
            for i in range(plane.size):
                plane[i] = _i32(min(np.divide(_f32(plane[i]) - start, scale), _TOP))


@device_function
def _copy_row(row, out):
    for i in range(row.size):
        out[i] = row[i]


@device_function
def _sharpen_row(rows, y, rest, column, out):
    """Add ``rest`` times the difference to the smoothed row; the first and last pixel stay."""
    above, row, below = rows[(y - 1) % 3], rows[y % 3], rows[(y + 1) % 3]
    for i in range(row.size):
        column[i] = above[i] + row[i] + below[i]
    left, right = column[:-2], column[2:]
    middle, center, out = column[1:-1], row[1:-1], out[1:-1]
    for i in range(out.size):
        level = center[i]
        smooth = np.rint((left[i] + middle[i] + right[i] + _FOUR * level) * _THIRTEENTH)
        out[i] = _i32(min(max(level + rest * (smooth - level), _f32(0)), _TOP))


@kernel("(float64[:, :, ::1], int64, int64, uint8[:, :, ::1])")
def sharpen(operands, slot, step, image):
    """Blend an image with its smoothed version; the border stays.

    Args:
        operands: float64 (n, k, 12), of which ``operands[slot, step, 0]`` is the factor: 0 smooths, 1 changes nothing.
        slot, step: int64.
        image: uint8 (3, height, width), C-contiguous.
    """
    rest = _f32(1 - operands[slot, step, 0])
    height, width = image.shape[1:]
    if height <= 2 or width <= 2:
        return
    rows, column = np.empty((3, width), np.float32), np.empty(width, np.float32)
    for c in range(3):
        plane = image[c]
        _copy_row(plane[0], rows[0])
        _copy_row(plane[1], rows[1])
        for y in range(1, height - 1):
            _copy_row(plane[y + 1], rows[(y + 1) % 3])
            _sharpen_row(rows, y, rest, column, plane[y])
