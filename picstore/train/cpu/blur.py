"""Gaussian blur of an image in place, in numba: two passes of symmetric taps with reflection at the border.

Weights, border and rounding are torchvision's. Weights are computed by exactly rounded operations alone, as in
``transforms/blur_weights.py`` for a GPU. Rows pass the horizontal pass once, as float32, into a ring buffer of as many
rows as the kernel is tall, which stays in the first- or second-level cache. Each output row is the vertical pass over
the ring. Equal weights multiply sums of two values, four pairs at a time: a loop without dependencies, which LLVM
vectorizes. Outer taps that together change a value by less than 1/60 grey level are dropped.
"""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, kernel
from picstore.train.transforms.blur_weights import GROUP, NEGLIGIBLE, first_ratio

_i32 = np.int32
_first_ratio = device_function(first_ratio)


@device_function
def half_weights(radius, sigma):
    """Weights of the middle tap and of the taps to one side that matter, padded by zeros to whole groups: float32."""
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
    """Reflect an index at the first and the last element, repeatedly."""
    period = max(2 * (extent - 1), 1)
    i = abs(i) % period
    return period - i if i >= extent else i


@device_function
def weighted_sum(flat, low, high, weights, out):
    """Write the weighted sum of rows of ``flat`` to ``out``; the rows of pair k begin at low[k] and high[k]."""
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
    """Copy a row to float32 and reflect it at both ends."""
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
    """Blur in place.

    Args:
        operands: float64 (n, k, 12), of which ``operands[slot, step]`` has the taps on either side of the middle one,
            across and down, and the standard deviation in pixels.
        slot, step: int64.
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
            for k in range(reach + 1):  # the ring has row r of the image at r modulo its size
                above[k] = reflected(y - k, height) % ring.shape[0] * width
                below[k] = reflected(y + k, height) % ring.shape[0] * width
            weighted_sum(ring.reshape(ring.size), above, below, down, line)
            _round(line, plane[y])
