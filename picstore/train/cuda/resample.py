"""Resampling of an output tile on the GPU, as ``kernels/resample.py`` and ``train/cpu/warp.py`` do it on the CPU.

An upright image is one antialiased resampling. The filter is separable, but an output pixel sums its whole
neighborhood at once: at scale s (2 s)² loads of bytes, where two passes take 2 s + 2 s · s and memory between them.
For a random crop (s ≤ 2.5 for most photographs at 224) these are 25 loads against 17, nearly all from the first-level
cache, and one pass saves a launch and 2 × 150,528 values an image in memory. Larger filters are rare, and such an image
takes longer to decode than to resample.

Positions are float64 as on the CPU, so that rounding puts a pixel on the same side of an edge; weights are float32.
"""

from __future__ import annotations

import math

from picstore.kernels import filters
from picstore.train.cuda.descriptor import (
    ADDRESS,
    CLIP,
    EDGE,
    EDGES,
    FILL,
    FILTER,
    FLIP,
    MAP,
    PITCH,
    PLANE,
    SIZE,
    SLANTED,
    SOURCE,
    TAPS,
    TILE_HEIGHT,
    TILE_WIDTH,
    load_f32,
    load_f64,
    load_i32,
    load_level,
)
from picstore.train.cuda.triton_jit import device_function, tl

# Halves are frequent, as midway between two pixels. They are rounded up as on the CPU, although a sum of float32 may
# fall short of one by a ten-thousandth.
_HALF_LEVEL = tl.constexpr(0.5 + 2.0**-11)
_BITS = tl.constexpr(12)  # of a weight in interpolation
_ONE = tl.constexpr(1 << 12)
_HALF = tl.constexpr(1 << 11)
_BILINEAR = tl.constexpr(filters.BILINEAR)  # less is of one pixel or a box
_BICUBIC = tl.constexpr(filters.BICUBIC)
_SHARP = tl.constexpr(filters.SHARP_CUBIC)
_PLAIN = tl.constexpr(filters.PLAIN_CUBIC)
_TIE = tl.constexpr(filters.TIE)
_PI = tl.constexpr(math.pi)


@device_function
def sampled(descriptor, y, x):  # type: ignore[no-untyped-def]
    """Resample an output's pixels: red, green, blue as whole float32 levels.

    Args:
        descriptor: of the image.
        y, x: int32 (h, 1) and (1, w).
    """
    interpolation = load_i32(descriptor, FILTER)
    if load_i32(descriptor, SLANTED) == 0:
        r, g, b = _filtered(descriptor, y, x, interpolation)
    elif interpolation == _BILINEAR:
        r, g, b = _interpolated(descriptor, y, x)
    elif interpolation < _BILINEAR:
        r, g, b = _nearest(descriptor, y, x)
    else:
        r, g, b = _bicubic(descriptor, y, x)
    count = load_i32(descriptor, EDGES + 1)
    if count > 0:
        weight = _visible_weight(descriptor, y, x, count, interpolation < _BILINEAR)
        r = _blended(r, load_i32(descriptor, FILL), weight)
        g = _blended(g, load_i32(descriptor, FILL + 1), weight)
        b = _blended(b, load_i32(descriptor, FILL + 2), weight)
    return r, g, b


@device_function
def _window(descriptor, i, interpolation, cubic, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """One axis of the filter, for output pixels ``i``.

    Returns:
        The first source pixel of each; its distance from the filter's center, or from the end of a box; the sums of
        weights within the clip, and within clip and image; and whether the center lies within the clip.
    """
    length = load_i32(descriptor, SIZE + axis)
    i = tl.where(load_i32(descriptor, FLIP + axis) != 0, length - 1 - i, i)
    center = load_f64(descriptor, MAP + axis) + (i.to(tl.float64) + 0.5) * load_f64(descriptor, MAP + 2 + axis)
    low = load_i32(descriptor, CLIP + axis)
    high = load_i32(descriptor, CLIP + 2 + axis)
    support = load_f64(descriptor, MAP + 4 + axis)
    if interpolation < _BILINEAR:
        center += _TIE
    first = tl.floor(center - support + 0.5).to(tl.int32)
    antialias = load_i32(descriptor, FILTER + 1)
    if antialias != 0:
        first = tl.maximum(first, low)
    distance = (first.to(tl.float64) + 0.5 - center).to(tl.float32)
    if interpolation < _BILINEAR:
        distance = (first - tl.floor(center + support + 0.5).to(tl.int32)).to(tl.float32)
    extent = load_i32(descriptor, SOURCE + axis)
    slope = 1.0 / load_f32(descriptor, MAP + 4 + axis)
    in_clip = distance * 0.0
    in_image = in_clip
    for k in range(load_i32(descriptor, TAPS + axis)):
        j = first + k
        if antialias == 0:
            j = tl.minimum(tl.maximum(j, low), high - 1)
        weight = tl.where(j < high, _weight(distance, k, slope, interpolation, cubic), 0.0)
        in_clip += weight
        in_image += tl.where((j >= 0) & (j < extent), weight, 0.0)
    return first, distance, in_clip, in_image, (center >= low) & (center < high)


@device_function
def _weight(distance, k, slope, interpolation, cubic):  # type: ignore[no-untyped-def]
    """Weights before normalization, ``k`` pixels after the first one."""
    if interpolation == _BILINEAR:
        weight = tl.maximum(1.0 - tl.abs(distance + k) * slope, 0.0)
    elif interpolation < _BILINEAR:
        weight = tl.where(distance + k < 0, 1.0, 0.0)
    elif interpolation == _BICUBIC:
        weight = _cubic(tl.abs(distance + k) * slope * 2.0, cubic)
    else:
        weight = _lanczos(tl.abs(distance + k) * slope)
    return weight


@device_function
def _cubic(distance, a):  # type: ignore[no-untyped-def]
    """Keys' cubic of parameter ``a``, at a distance in pixels."""
    near = ((a + 2.0) * distance - (a + 3.0)) * distance * distance + 1.0
    far = a * (((distance - 5.0) * distance + 8.0) * distance - 4.0)
    return tl.where(distance < 1.0, near, tl.where(distance < 2.0, far, 0.0))


@device_function
def _lanczos(distance):  # type: ignore[no-untyped-def]
    """The Lanczos filter, at a distance in half-widths."""
    angle = tl.maximum(distance, 1e-4) * _PI
    square = tl.sin(angle) * tl.sin(angle)
    return tl.where(distance < 1.0, square * (3.0 - 4.0 * square) / (3.0 * angle * angle), 0.0)


@device_function
def _cubic_parameter(descriptor):  # type: ignore[no-untyped-def]
    return tl.where(load_i32(descriptor, FILTER + 1) != 0, _SHARP, _PLAIN)


@device_function
def _filtered(descriptor, y, x, interpolation):  # type: ignore[no-untyped-def]
    """Resampling of an upright image. Loads of the descriptor precede the loops, as a compiler need not hoist them."""
    cubic = _cubic_parameter(descriptor)
    first_x, distance_x, clip_x, image_x, seen_x = _window(descriptor, x, interpolation, cubic, 0)
    first_y, distance_y, clip_y, image_y, seen_y = _window(descriptor, y, interpolation, cubic, 1)
    total = clip_y * clip_x
    outside = total - image_y * image_x
    red, green, blue = load_level(descriptor, FILL), load_level(descriptor, FILL + 1), load_level(descriptor, FILL + 2)
    r, g, b = outside * red, outside * green, outside * blue
    source = tl.load(descriptor + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane = tl.load(descriptor + PLANE)
    width, pitch = load_i32(descriptor, SOURCE), load_i32(descriptor, PITCH)
    left, top = load_i32(descriptor, CLIP), load_i32(descriptor, CLIP + 1)
    right, bottom = load_i32(descriptor, CLIP + 2), load_i32(descriptor, CLIP + 3)
    end_x = tl.minimum(width, right)
    end_y = tl.minimum(load_i32(descriptor, SOURCE + 1), bottom)
    plain = load_i32(descriptor, FILTER + 1) == 0
    slope_x, slope_y = 1.0 / load_f32(descriptor, MAP + 4), 1.0 / load_f32(descriptor, MAP + 5)
    taps_x = load_i32(descriptor, TAPS)
    for v in range(load_i32(descriptor, TAPS + 1)):
        j = first_y + v
        if plain:
            j = tl.minimum(tl.maximum(j, top), bottom - 1)
        weight_y = _weight(distance_y, v, slope_y, interpolation, cubic)
        known_y = (j >= 0) & (j < end_y)
        line = source + j * pitch
        for u in range(taps_x):
            i = first_x + u
            if plain:
                i = tl.minimum(tl.maximum(i, left), right - 1)
            weight = weight_y * _weight(distance_x, u, slope_x, interpolation, cubic)
            known = known_y & (i >= 0) & (i < end_x)
            pixel = line + i
            r += weight * tl.load(pixel, known, 0).to(tl.float32)
            g += weight * tl.load(pixel + plane, known, 0).to(tl.float32)
            b += weight * tl.load(pixel + 2 * plane, known, 0).to(tl.float32)
    # A pixel whose center lies within the clip gives weight to the source pixel under it, so its ``total`` is not 0.
    seen = seen_y & seen_x
    scale = 1.0 / tl.where(seen, total, 1.0)
    return (
        tl.where(seen, _level(r * scale), red),
        tl.where(seen, _level(g * scale), green),
        tl.where(seen, _level(b * scale), blue),
    )


@device_function
def _level(value):  # type: ignore[no-untyped-def]
    """Round to a level; bicubic and Lanczos overshoot."""
    return tl.minimum(tl.maximum(tl.floor(value + _HALF_LEVEL), 0.0), 255.0)


@device_function
def _position(descriptor, y, x, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """Positions along an axis, float64, up to 2 pixels beyond the clip; first and last pixel of the clip."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    matrix = descriptor + MAP + 3 * axis
    at = load_f64(matrix, 0) * across + load_f64(matrix, 1) * down + load_f64(matrix, 2)
    low = load_i32(descriptor, CLIP + axis)
    last = load_i32(descriptor, CLIP + 2 + axis) - 1
    return tl.minimum(tl.maximum(at, low - 2.0), last + 3.0), low, last


@device_function
def _nearest(descriptor, y, x):  # type: ignore[no-untyped-def]
    """The nearest pixel of a slanted image; borders as for ``_interpolated``."""
    at_x, left, right = _position(descriptor, y, x, 0)
    at_y, top, bottom = _position(descriptor, y, x, 1)
    i = tl.minimum(tl.maximum(tl.floor(at_x + _TIE).to(tl.int32), left), right)
    j = tl.minimum(tl.maximum(tl.floor(at_y + _TIE).to(tl.int32), top), bottom)
    r, g, b = _corner(descriptor, j, i, 1)
    return r.to(tl.float32), g.to(tl.float32), b.to(tl.float32)


@device_function
def _bicubic(descriptor, y, x):  # type: ignore[no-untyped-def]
    """Bicubic interpolation of a slanted image; borders as for ``_interpolated``."""
    at_x, left, right = _position(descriptor, y, x, 0)
    at_y, top, bottom = _position(descriptor, y, x, 1)
    near_x, near_y = tl.floor(at_x - 0.5), tl.floor(at_y - 0.5)
    away_x, away_y = (at_x - 0.5 - near_x).to(tl.float32), (at_y - 0.5 - near_y).to(tl.float32)
    first_x, first_y = near_x.to(tl.int32) - 1, near_y.to(tl.int32) - 1
    cubic = _cubic_parameter(descriptor)
    r = away_x * 0.0
    g = r
    b = r
    for v in range(4):
        weight_y = _cubic(tl.abs(away_y + 1.0 - v), cubic)
        j = tl.minimum(tl.maximum(first_y + v, top), bottom)
        for u in range(4):
            i = tl.minimum(tl.maximum(first_x + u, left), right)
            red, green, blue = _corner(descriptor, j, i, weight_y * _cubic(tl.abs(away_x + 1.0 - u), cubic))
            r += red
            g += green
            b += blue
    return _level(r), _level(g), _level(b)


@device_function
def _interpolated(descriptor, y, x):  # type: ignore[no-untyped-def]
    """Bilinear interpolation: outside of the clip its border is repeated, outside of the image there is ``fill``."""
    left, right, fx = _neighbors(descriptor, y, x, 0)
    top, bottom, fy = _neighbors(descriptor, y, x, 1)
    both = (fx * fy + _HALF) >> _BITS
    r0, g0, b0 = _corner(descriptor, top, left, _ONE - fx - fy + both)
    r1, g1, b1 = _corner(descriptor, top, right, fx - both)
    r2, g2, b2 = _corner(descriptor, bottom, left, fy - both)
    r3, g3, b3 = _corner(descriptor, bottom, right, both)
    return _rounded(r0 + r1 + r2 + r3), _rounded(g0 + g1 + g2 + g3), _rounded(b0 + b1 + b2 + b3)


@device_function
def _rounded(total):  # type: ignore[no-untyped-def]
    return ((total + _HALF) >> _BITS).to(tl.float32)


@device_function
def _neighbors(descriptor, y, x, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two nearest source pixels along an axis, and the 12-bit weight of the second."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    matrix = descriptor + MAP + 3 * axis
    at = load_f64(matrix, 0) * across + load_f64(matrix, 1) * down + load_f64(matrix, 2) - 0.5
    low = load_i32(descriptor, CLIP + axis)
    last = load_i32(descriptor, CLIP + 2 + axis) - 1
    at = tl.minimum(tl.maximum(at, low.to(tl.float64)), last.to(tl.float64))
    near = tl.floor(at)
    weight = tl.floor((at - near) * _ONE + 0.5).to(tl.int32)
    near = near.to(tl.int32)
    return near, tl.minimum(near + 1, last), weight


@device_function
def _corner(descriptor, y, x, weight):  # type: ignore[no-untyped-def]
    """The three levels of a neighbor times its weight."""
    source = tl.load(descriptor + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane = tl.load(descriptor + PLANE)
    known = (y >= 0) & (y < load_i32(descriptor, SOURCE + 1)) & (x >= 0) & (x < load_i32(descriptor, SOURCE))
    pixel = source + y * load_i32(descriptor, PITCH) + x
    r = tl.load(pixel, known, 0).to(tl.int32)
    g = tl.load(pixel + plane, known, 0).to(tl.int32)
    b = tl.load(pixel + 2 * plane, known, 0).to(tl.int32)
    r = tl.where(known, r, load_i32(descriptor, FILL))
    g = tl.where(known, g, load_i32(descriptor, FILL + 1))
    b = tl.where(known, b, load_i32(descriptor, FILL + 2))
    return r * weight, g * weight, b * weight


@device_function
def _visible_weight(descriptor, y, x, count, hard):  # type: ignore[no-untyped-def]
    """The part of each pixel inside of the edges: int32 up to ``_ONE``; none or all of it if edges are ``hard``."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    seen = tl.full((TILE_HEIGHT, TILE_WIDTH), 1.0, tl.float64)
    edge = descriptor + load_i32(descriptor, EDGES)
    for _ in range(count):
        inside = load_f64(edge, 0) * across + load_f64(edge, 1) * down + load_f64(edge, 2)
        if hard:
            seen *= tl.where(inside >= -_TIE, 1.0, 0.0)
        else:
            seen *= tl.minimum(tl.maximum(inside + 0.5, 0.0), 1.0)
        edge += EDGE
    return (seen * _ONE + 0.5).to(tl.int32)


@device_function
def _blended(value, fill, weight):  # type: ignore[no-untyped-def]
    return _rounded(value.to(tl.int32) * weight + fill * (_ONE - weight))
