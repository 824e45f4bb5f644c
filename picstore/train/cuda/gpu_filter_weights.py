"""Weights of source pixels for resampling upright images on the GPU, equal to ``kernels/filter_weights.py``'s.

A lane makes the weights of an output pixel along an axis, once for the batch; the programs of all tiles in the pixel's
row or column read the weights. float64 is exactly rounded on both sides, and launches forbid the compiler to fuse
operations, so the resulting integers are equal.
"""

from __future__ import annotations

import math

from picstore.kernels import filters
from picstore.train.cuda.augment_layout import (
    AXES,
    CLIP,
    FILTER,
    FLIP,
    MAP,
    SIZE,
    SLANTED,
    SOURCE,
    WEIGHTS,
    WINDOW,
    find_descriptor,
    load_f64,
    load_i32,
)
from picstore.train.cuda.triton_jit import device_function, kernel, tl

LANES = 256  # number of output pixels whose weights a program computes at once

# For each axis of an image, ``WEIGHTS`` holds int32. The first is the maximum number of weights of any output pixel.
# From index FIRSTS on, there are rows with one number for each output pixel: its first source pixel; its weight of the
# fill (1 << ONE_BITS minus its other weights); its first weight; its second weight; and so on.
FIRSTS = tl.constexpr(1)

_BILINEAR = tl.constexpr(filters.BILINEAR)  # Smaller codes, NEAREST and BOX, weigh all pixels alike.
_BICUBIC = tl.constexpr(filters.BICUBIC)
_SHARP, _PLAIN = tl.constexpr(filters.SHARP_CUBIC), tl.constexpr(filters.PLAIN_CUBIC)
_TIE = tl.constexpr(filters.TIE)
_ONE = tl.constexpr(1 << filters.ONE_BITS)
_PI, _HALF_PI = tl.constexpr(math.pi), tl.constexpr(math.pi / 2)
_LOBES = tl.constexpr(filters.HALF_WIDTHS[filters.LANCZOS])
_COSINE_SERIES = tl.constexpr(filters.COSINE_SERIES)


@kernel
def make_weights(table, LANES: tl.constexpr):
    """Compute the weights of source pixels for all upright images of a table; the grid is (2 axes, images)."""
    descriptor = find_descriptor(table)
    if load_i32(descriptor, SLANTED) != 0:
        return
    axis = tl.program_id(0)
    words = descriptor + axis
    length = load_i32(words, SIZE)
    made = tl.load(table + WEIGHTS).to(tl.pointer_type(tl.int32)) + tl.load(words + AXES)
    most = 0
    for begin in range(0, length, LANES):
        x = begin + tl.arange(0, LANES)
        most = tl.maximum(most, tl.max(_weigh(descriptor, words, made + FIRSTS, x, length)))
    tl.store(made, most)


@device_function
def _weigh(descriptor, words, made, x, length):
    """Write the weights for output pixels ``x`` along an axis to ``made``; return each pixel's number of weights."""
    interpolation, antialias = load_i32(descriptor, FILTER), load_i32(descriptor, FILTER + 1)
    low, high, extent = load_i32(words, CLIP), load_i32(words, CLIP + 2), load_i32(words, SOURCE)
    support = load_f64(words, MAP + 4)
    i = tl.where(load_i32(words, FLIP) != 0, length - 1 - x, x)
    center = load_f64(words, MAP) + (i.to(tl.float64) + 0.5) * load_f64(words, MAP + 2)
    if interpolation < _BILINEAR:
        center += _TIE
    seen = (x < length) & (center >= low) & (center < high)
    first, last = tl.floor(center - support + 0.5).to(tl.int32), tl.floor(center + support + 0.5).to(tl.int32)
    begin, end = tl.maximum(first, low), tl.minimum(last, high)
    if (antialias != 0) | (interpolation == _BILINEAR):
        first, last = begin, end
    in_image = seen & (begin < extent) & (end > 0)
    kept = tl.where(in_image, tl.maximum(begin, 0), 0)
    window = load_i32(words, WINDOW)
    a = tl.where(antialias != 0, _SHARP, _PLAIN).to(tl.float64)
    total = center * 0.0
    for k in range(window):
        value = _value(first + k, center, support, interpolation, a)
        total += tl.where(first + k < last, value, 0.0)
    total = tl.where(seen, total, 1.0)
    running = center * 0.0
    before, base, place = x * 0, x * 0, begin
    missing = x * 0 + _ONE
    for k in range(window):
        j = first + k
        known = seen & (j < last)
        at = tl.minimum(tl.maximum(j, begin), end - 1)  # Pixels beyond the clip repeat its first or last pixel.
        running += tl.where(known, _value(j, center, support, interpolation, a), 0.0)
        now = tl.floor(running / total * _ONE + 0.5).to(tl.int32)
        base = tl.where(at != place, before, base)
        known &= (at >= 0) & (at < extent)
        tl.store(made + (2 + at - kept) * length + x, now - base, known)
        missing -= tl.where(known, now - before, 0)
        before, place = now, at
    tl.store(made + x, kept, x < length)
    tl.store(made + length + x, missing, x < length)
    return tl.where(in_image, tl.minimum(end, extent) - kept, 0)


@device_function
def _value(j, center, support, interpolation, a):
    """Return the filter's value for source pixels ``j``: the weight before division by the sum of all such values."""
    distance = tl.abs(j.to(tl.float64) + 0.5 - center) / support
    if interpolation == _BILINEAR:
        value = tl.maximum(1.0 - distance, 0.0)
    elif interpolation < _BILINEAR:
        value = distance * 0.0 + 1.0
    elif interpolation == _BICUBIC:
        value = tl.where(distance < 1.0, cubic(2.0 * distance, a), 0.0)
    else:
        value = tl.where(distance < 1.0, _lanczos(distance), 0.0)
    return value


@device_function
def cubic(distance, a):
    """Return the value of Keys' cubic filter with the parameter ``a`` at a distance of at most 2 pixels, float64."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = a * (((distance - 5.0) * distance + 8.0) * distance - 4.0)
    return tl.where(distance < 1.0, near, far)


@device_function
def _lanczos(distance):
    """Return the value of the Lanczos filter at a distance below 1, in units of the filter's half-width."""
    near = _PI * distance < 1e-5
    angle = tl.where(near, 1.0, _PI * distance)
    u = (angle - _HALF_PI) * (angle - _HALF_PI)
    sine = angle * 0.0 + 1.0
    for k in tl.static_range(8):
        sine = 1.0 - sine * u * _COSINE_SERIES[k]
    value = sine * sine * (3.0 - 4.0 * sine * sine) / (_LOBES * angle * angle)
    return tl.where(near, 1.0, value)
