"""Source positions of a canvas's pixels, in numba: affine and perspective maps, and elastic noise.

A position is an integer: 2**-12 pixels from the center of the first pixel or, for ``NEAREST``, the index of a pixel.
LLVM vectorizes the float64 arithmetic: an affine map of 224 × 224 pixels takes 26 µs, a perspective map 61 µs.
"""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, inlined, kernel
from picstore.train.cpu.blur_sharpen_equalize import half_weights, pad_row, reflected, weighted_sum
from picstore.train.cpu.noise import random_bits
from picstore.train.transforms.opcodes import LEAST_SIGMA, NEAREST, SAMPLING

BITS, ONE = 12, 1 << 12  # number of fractional bits of a position, and the distance of 1 pixel in such integers

_f32, _i32 = np.float32, np.int32
_S40 = np.uint64(40)
_TO_UNIT = np.float32(2.0**-23)


@inlined
def _fixed(at, scale, shift, extent):
    """Return ``at`` · scale + shift, limited to the range from −1 to ``extent`` + 1 pixels, rounded down to int32."""
    at = at * scale + shift
    at = at if at > -scale else -scale  # NaN becomes -scale too.
    highest = scale * (extent + 1) - 1
    return _i32(np.floor(at if at < highest else highest))


@inlined
def _scale_and_shift(sampling):
    """Return the factor and offset from coordinates to positions, in pixels for NEAREST or else in 1 / ONE pixels."""
    return (1.0, 0.0) if sampling == NEAREST else (float(ONE), 0.5 - ONE / 2)


@kernel("(float64[:, :, ::1], int64, int64, int32[:, :, ::1])")
def map_positions(operands, slot, step, positions):
    """Write to ``positions`` the source position of each pixel under an affine or perspective map.

    Args:
        operands, slot, step: ``operands[slot, step]`` of float64 (images, steps, 12) holds the operands of
            ``opcodes.WARP``.
        positions: int32 (2, height, width), receives x and y.
    """
    numbers = operands[slot, step]
    a, b, c, d = numbers[0], numbers[1], numbers[2], numbers[3]
    e, f, g, h = numbers[4], numbers[5], numbers[6], numbers[7]
    height, width = positions.shape[1:]
    scale, shift = _scale_and_shift(numbers[SAMPLING])
    for y in range(height):
        to_x, to_y = positions[0, y], positions[1, y]
        down = y + 0.5
        if g == 0 and h == 0:
            for x in range(width):
                to_x[x] = _fixed(a * (x + 0.5) + b * down + c, scale, shift, width)
                to_y[x] = _fixed(d * (x + 0.5) + e * down + f, scale, shift, height)
        else:
            for x in range(width):
                depth = g * (x + 0.5) + h * down + 1
                to_x[x] = _fixed(np.divide(a * (x + 0.5) + b * down + c, depth), scale, shift, width)
                to_y[x] = _fixed(np.divide(d * (x + 0.5) + e * down + f, depth), scale, shift, height)


@device_function
def _fill_uniform(key, first, row):
    """Fill a row with random multiples of 2**-23 in [-1, 1): value i has the random counter ``first`` + i."""
    for i in range(row.size):
        row[i] = _f32(_i32(random_bits(key, first + i) >> _S40)) * _TO_UNIT - _f32(1)


@device_function
def _blurred_rows(key, first, across, rows):
    """Fill ``rows`` with random numbers, from the random counter ``first`` on; blur each row by weights ``across``."""
    width, margin = rows.shape[1], across.size - 1
    numbers, padded = np.empty(width, np.float32), np.zeros(width + 2 * margin, np.float32)
    left, right = np.empty(margin + 1, np.int64), np.empty(margin + 1, np.int64)
    for k in range(margin + 1):
        left[k], right[k] = margin - k, margin + k
    for y in range(rows.shape[0]):
        _fill_uniform(key, first + y * width, numbers)
        pad_row(numbers, padded, margin)
        weighted_sum(padded, left, right, across, rows[y])


@device_function
def _displace(rows, down, numbers, axis, positions):
    """Blur ``rows`` along columns; write each pixel's coordinate, x for axis 0, else y, plus its displacement."""
    height, width = rows.shape
    reach = down.size - 1
    above, below = np.empty(reach + 1, np.int64), np.empty(reach + 1, np.int64)
    line = np.empty(width, np.float32)
    scale, shift = _scale_and_shift(numbers[SAMPLING])
    most = numbers[axis]
    for y in range(height):
        for k in range(reach + 1):
            above[k], below[k] = reflected(y - k, height) * width, reflected(y + k, height) * width
        weighted_sum(rows.reshape(rows.size), above, below, down, line)
        to = positions[y]
        if axis == 0:
            for x in range(width):
                to[x] = _fixed(x + 0.5 + most * line[x], scale, shift, width)
        else:
            for x in range(width):
                to[x] = _fixed(y + 0.5 + most * line[x], scale, shift, height)


@kernel("(float64[:, :, ::1], uint64[:, ::1], int64, int64, int32[:, :, ::1])")
def displace_positions(operands, key, slot, step, positions):
    """Write each pixel's position, displaced by blurred uniform noise as in torchvision's ElasticTransform.

    Args:
        operands: float64 (images, steps, 12); ``operands[slot, step]`` holds the operands of ``opcodes.ELASTIC``.
        key: uint64 (images, steps), random keys of the steps.
        slot, step: index of the image, and of the step.
        positions: int32 (2, height, width), receives x and y.
    """
    numbers = operands[slot, step]
    height, width = positions.shape[1:]
    rows = np.empty((height, width), np.float32)
    for axis in range(2):
        radius = int(8 * numbers[2 + axis] + 1) // 2  # number of taps on a side of the middle tap, as in torchvision
        across = half_weights(radius, max(numbers[2], LEAST_SIGMA))
        down = half_weights(radius, max(numbers[3], LEAST_SIGMA))
        _blurred_rows(key[slot, step], axis * height * width, across, rows)
        _displace(rows, down, numbers, axis, positions[axis])
