"""Blur, sharpening, equalization and contrast stretching of an image in place, in numba.

All follow torchvision; the last three equal it bit for bit. A Gaussian blur is two passes of symmetric taps with
reflection at the border. Only exactly rounded operations compute its weights, as in ``transforms/blur_weights.py`` for
a GPU. The horizontal pass writes each row once, as float32, to a ring buffer of as many rows as the filter is tall,
which stays in the first- or second-level cache. The vertical pass over the ring writes each output row. Pairs of values
with equal weights are added before they are multiplied, four pairs at a time, in a loop without dependencies, which
LLVM vectorizes. Outer taps that together change a value by less than 1/60 grey level are dropped.
"""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, kernel
from picstore.kernels.simd import load_native_u64
from picstore.train.transforms.blur_weights import GROUP, NEGLIGIBLE, first_ratio

_LEVELS = 256
# Number of histograms, one for each byte of a word, because increments of one counter wait for each other.
_TABLES = 8

_f32, _i32, _u8, _u64 = np.float32, np.int32, np.uint8, np.uint64
_LOW = np.uint64(0xFF)
_TOP, _PER_LEVEL = np.float32(255), np.float32(1 / 255)
# To smooth for sharpening, the sum of 3 × 3 pixels plus 4 times the middle pixel is divided by 13, the sum of weights.
_FOUR, _THIRTEENTH = np.float32(4), np.float32(1 / 13)
_first_ratio = device_function(first_ratio)


@device_function
def half_weights(radius, sigma):
    """Return the float32 weights of a Gaussian blur: the weight of the middle tap, then ``radius`` weights of one side.

    Negligible outer weights are left out; zeros then fill the side up to a multiple of GROUP.
    """
    values = np.empty(radius + 1)
    ratio = _first_ratio(sigma)
    square = ratio * ratio
    values[0] = value = total = 1.0
    for k in range(1, radius + 1):
        value *= ratio
        ratio *= square
        values[k] = value
        total += 2 * value
    tail = 0.0
    while radius > 0:
        tail += values[radius] / total
        if tail > NEGLIGIBLE:
            break
        radius -= 1
    weights = np.zeros(1 + (radius + GROUP - 1) // GROUP * GROUP, np.float32)
    for k in range(radius + 1):
        weights[k] = values[k] / total
    return weights


@device_function
def reflected(i, extent):
    """Return the index from 0 to ``extent`` − 1 that ``i`` has after reflections at the first and the last element."""
    period = max(2 * (extent - 1), 1)
    i = abs(i) % period
    return period - i if i >= extent else i


@device_function
def weighted_sum(flat, low, high, weights, out):
    """Write to ``out`` a weighted sum of rows in ``flat``, each as long as ``out``.

    weights[0] is for the row that begins at flat[low[0]]; weights[k] is for the two rows that begin at flat[low[k]] and
    flat[high[k]].
    """
    middle, count = flat[low[0] :], out.size
    first = weights[0]
    for i in range(count):
        out[i] = first * middle[i]
    for k in range(1, weights.size, GROUP):
        a, b, c, d = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        p0, p1, p2, p3 = flat[low[k] :], flat[low[k + 1] :], flat[low[k + 2] :], flat[low[k + 3] :]
        q0, q1, q2, q3 = flat[high[k] :], flat[high[k + 1] :], flat[high[k + 2] :], flat[high[k + 3] :]
        for i in range(count):
            out[i] += (a * (p0[i] + q0[i]) + b * (p1[i] + q1[i])) + (c * (p2[i] + q2[i]) + d * (p3[i] + q3[i]))


@device_function
def pad_row(row, padded, margin):
    """Copy a row into the middle of ``padded``, float32, and fill the ``margin`` values at each end by reflection."""
    middle = padded[margin:]
    for i in range(row.size):
        middle[i] = row[i]
    for k in range(1, margin + 1):
        padded[margin - k] = row[reflected(-k, row.size)]
        padded[margin + row.size - 1 + k] = row[reflected(row.size - 1 + k, row.size)]


@device_function
def _round(line, row):
    for i in range(row.size):
        row[i] = _i32(np.rint(line[i]))


@kernel("(float64[:, :, ::1], int64, int64, uint8[:, :, ::1])")
def blur(operands, slot, step, image):
    """Blur an image by a Gaussian, in place.

    Args:
        operands, slot, step: ``operands[slot, step]`` of float64 (images, steps, 12) holds the number of taps on one
            side of the middle tap in a row, that number in a column, and the standard deviation in pixels.
        image: uint8 (3, height, width), C-contiguous, not empty.
    """
    numbers = operands[slot, step]
    height, width = image.shape[1:]
    across, down = half_weights(int(numbers[0]), numbers[2]), half_weights(int(numbers[1]), numbers[2])
    margin, reach = across.size - 1, down.size - 1
    if margin == 0 and reach == 0:
        return
    padded = np.zeros(width + 2 * margin, np.float32)
    left, right = np.empty(margin + 1, np.int64), np.empty(margin + 1, np.int64)
    for k in range(margin + 1):
        left[k], right[k] = margin - k, margin + k
    ring = np.zeros((2 * reach + 1, width), np.float32)
    above, below = np.empty(reach + 1, np.int64), np.empty(reach + 1, np.int64)
    line = np.empty(width, np.float32)
    for c in range(3):
        plane = image[c]
        done = 0
        for y in range(height):
            while done < min(y + reach + 1, height):
                pad_row(plane[done], padded, margin)
                weighted_sum(padded, left, right, across, ring[done % ring.shape[0]])
                done += 1
            # ``ring`` holds only the rows near row y, blurred across; row r of the image is at index r modulo its size.
            for k in range(reach + 1):
                above[k] = reflected(y - k, height) % ring.shape[0] * width
                below[k] = reflected(y + k, height) % ring.shape[0] * width
            weighted_sum(ring.reshape(ring.size), above, below, down, line)
            _round(line, plane[y])


@device_function
def _count_levels(plane, counts):
    """Count a plane's levels in 8 histograms, ``counts``, int32 (8, 256); their sum is the plane's histogram."""
    address, words = plane.ctypes.data, plane.size // 8
    for k in range(words):
        word = load_native_u64(_u64(address + 8 * k))
        for j in range(_TABLES):
            counts[j, (word >> _u64(8 * j)) & _LOW] += _i32(1)
    for i in range(8 * words, plane.size):
        counts[0, plane[i]] += _i32(1)


@device_function
def _equalizing_table(counts, table):
    """Write each level's equalized value to ``table``, from histograms ``counts``; return False if no level changes."""
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
    """Equalize the histogram of each channel of an image, uint8 (3, height, width), C-contiguous."""
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
    """Stretch each channel of an image, uint8 (3, height, width), so that its levels range from 0 to 255."""
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
    """Write row y times (1 - ``rest``) plus its smoothed copy times ``rest`` to ``out``, without the two end pixels."""
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
    """Blend an image in place with a smoothed copy of itself; the outermost pixels stay unchanged.

    ``operands[slot, step, 0]`` is the factor: 0 smooths, 1 changes nothing. Arrays have the shapes that ``blur`` needs.
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
