"""Weights of source pixels along one axis, as integers with 14 fractional bits, for the passes of ``resample.py``."""

from __future__ import annotations

import math

import numpy as np

from picstore.kernels.filters import (
    BICUBIC,
    BILINEAR,
    COSINE_SERIES,
    GRID,
    HALF_WIDTHS,
    LANCZOS,
    NEAREST,
    ONE_BITS,
    PLAIN_CUBIC,
    SHARP_CUBIC,
    TIE,
)
from picstore.kernels.jit import device_function

# Integer that stands for the weight 1: the sum of all weights with which source pixels and fill enter an output pixel.
ONE = 1 << ONE_BITS


@device_function
def cubic(distance, a):
    """Return Keys' cubic (IEEE Transactions on ASSP 29, 1981) with parameter ``a``, at a distance of 0 to 2."""
    if distance < 1.0:
        return ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    return a * (((distance - 5.0) * distance + 8.0) * distance - 4.0)


@device_function
def _lanczos(distance):
    """Return the Lanczos filter's value at ``distance`` half-widths, 0 to 1, from its center."""
    angle = math.pi * distance
    if angle < 1e-5:
        return 1.0
    # Compute sin a = cos(a - pi/2) by the cosine's series up to the 16th power, with an error below 5e-13. A
    # photograph's weights thus take 72 us; with libm's sine they would take 105 us.
    u = (angle - math.pi / 2) ** 2
    sine = 1.0
    for reciprocal in COSINE_SERIES:
        sine = 1.0 - sine * u * reciprocal
    # The filter is sin a sin 3a / (3 a^2), where sin a sin 3a = sin^2 a (3 - 4 sin^2 a).
    return sine * sine * (3.0 - 4.0 * sine * sine) / (HALF_WIDTHS[LANCZOS] * angle * angle)


@device_function
def _filter_value(distance, interpolation, a):
    """Return a filter's value, not normalized, at ``distance`` half-widths from the filter's center.

    ``a`` is the parameter of Keys' cubic, which other filters ignore.
    """
    # NEAREST and BOX have equal weights: the caller passes only pixels whose centers lie within the filter.
    if interpolation < BILINEAR:
        return 1.0
    if distance >= 1.0:
        return 0.0
    if interpolation == BICUBIC:
        return cubic(HALF_WIDTHS[BICUBIC] * distance, a)
    return _lanczos(distance)


@device_function
def _set_triangle(values, center, support, begin, end):
    """Write the triangle filter's values at pixels ``begin`` to ``end - 1`` to ``values``; return their sum.

    ``center`` is the filter's middle and ``support`` its half-width, in pixels.
    """
    total = 0.0
    for j in range(begin, end):
        values[j - begin] = max(1.0 - abs(j + 0.5 - center) / support, 0.0)
        total += values[j - begin]
    return total


@device_function
def _set_values(values, center, support, begin, end, interpolation, antialias):
    """Write the values of any filter; arguments and result are those of ``_set_triangle``.

    Without antialiasing, values outside of pixels ``begin`` to ``end - 1`` are added to the first or the last value.
    """
    a = SHARP_CUBIC if antialias else PLAIN_CUBIC
    first, last = begin, end
    if not antialias:
        first, last = math.floor(center - support + 0.5), math.floor(center + support + 0.5)
    values[: end - begin] = 0.0
    total = 0.0
    for j in range(first, last):
        value = _filter_value(abs(j + 0.5 - center) / support, interpolation, a)
        values[min(max(j, begin), end - 1) - begin] += value
        total += value
    return total


@device_function
def _support(size, length, interpolation, antialias):
    """Return a filter's half-width in source pixels, for a resize of ``size`` source pixels to ``length`` pixels."""
    support = HALF_WIDTHS[interpolation]
    if antialias and interpolation != NEAREST:
        support *= max(size / length, 1.0)
    return support


@device_function
def most_taps(size, length, interpolation, antialias):
    """Return the maximum number of source pixels from which an output pixel is computed; see ``axis_weights``."""
    return 2 * math.ceil(_support(size, length, interpolation, antialias)) + 1


@device_function
def axis_weights(start, size, low, high, extent, interpolation, antialias, length):
    """Compute the weights of source pixels along one axis.

    Args:
        start, size: start and length of the box, in source pixels.
        low, high: bounds of the clip (the pixels that may be used), in source pixels.
        extent: number of pixels of the image.
        interpolation: code of a filter, such as ``filters.BICUBIC``.
        antialias: whether to widen a filter that minifies. If not, weights beyond the clip are added to those of its
            border pixels.
        length: number of pixels of the output.

    Returns:
        Four arrays, with an element for each output pixel: index of the first source pixel; number of source pixels;
        their weights; and the weight of the fill color: ``ONE`` minus the sum of the weights, or ``ONE`` if the center
        is outside of the clip.
    """
    scale = math.floor(size / length * GRID + 0.5) / GRID
    support = _support(size, length, interpolation, antialias)
    tie = TIE if interpolation < BILINEAR else 0.0
    most = most_taps(size, length, interpolation, antialias)
    taps = min(most, max(min(high, extent) - max(low, 0), 1))
    first = np.zeros(length, np.int64)
    count = np.zeros(length, np.int64)
    missing = np.full(length, ONE, np.int32)
    weights = np.zeros((length, taps + 2), np.int16)  # two zeros after each row, because weights are read in pairs
    values = np.empty(min(most, max(high - low, 1)))
    for i in range(length):
        center = start + (i + 0.5) * scale + tie
        if not low <= center < high:
            continue
        begin, end = max(math.floor(center - support + 0.5), low), min(math.floor(center + support + 0.5), high)
        # ``_set_triangle`` only exists because it saves a quarter of the time that ``_set_values`` would take.
        if interpolation == BILINEAR:
            total = _set_triangle(values, center, support, begin, end)
        else:
            total = _set_values(values, center, support, begin, end, interpolation, antialias)
        if begin < extent and end > 0:
            first[i] = max(begin, 0)
            count[i] = min(end, extent) - first[i]
        # Round the running sum, not each weight, so that the integer weights add up to ONE.
        running = 0.0
        before = 0
        for j in range(begin, end):
            running += values[j - begin]
            now = math.floor(running / total * ONE + 0.5)
            if 0 <= j < extent:
                weights[i, j - first[i]] = now - before
                missing[i] -= now - before
            before = now
    return first, count, weights, missing
