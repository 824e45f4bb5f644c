"""Resampling of an output tile on the GPU, as ``kernels/resample.py`` and ``train/cpu/warp.py`` do it on the CPU.

An upright image is one antialiased resampling. The filter is separable, but an output pixel sums its whole
neighbourhood at once: at scale s (2 s)² loads of bytes, where two passes take 2 s + 2 s · s and memory between them.
For a random crop (s ≤ 2.5 for most photographs at 224) these are 25 loads against 17, nearly all from the first-level
cache, and one pass saves a launch and 2 × 150,528 values an image in memory. Larger filters are rare, and such an image
takes longer to decode than to resample.

Positions are float64 as on the CPU, so that rounding puts a pixel on the same side of an edge; weights are float32.
"""

from __future__ import annotations

from picstore.train.cuda.descriptor import (
    ADDRESS,
    CLIP,
    EDGE,
    EDGES,
    FILL,
    FLIP,
    MAP,
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


@device_function
def sampled(descriptor, y, x):  # type: ignore[no-untyped-def]
    """Resample an output's pixels: red, green, blue as whole float32 levels.

    Args:
        descriptor: of the image.
        y, x: int32 (h, 1) and (1, w).
    """
    if load_i32(descriptor, SLANTED):
        r, g, b = _interpolated(descriptor, y, x)
    else:
        r, g, b = _filtered(descriptor, y, x)
    count = load_i32(descriptor, EDGES + 1)
    if count > 0:
        weight = _visible_weight(descriptor, y, x, count)
        r = _blended(r, load_i32(descriptor, FILL), weight)
        g = _blended(g, load_i32(descriptor, FILL + 1), weight)
        b = _blended(b, load_i32(descriptor, FILL + 2), weight)
    return r, g, b


@device_function
def _window(descriptor, i, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """One axis of the filter, for output pixels ``i``.

    Returns:
        The first source pixel of each; its distance from the filter's centre; the sums of weights within the clip, and
        within clip and image; and whether the centre lies within the clip.
    """
    length = load_i32(descriptor, SIZE + axis)
    i = tl.where(load_i32(descriptor, FLIP + axis) != 0, length - 1 - i, i)
    centre = load_f64(descriptor, MAP + axis) + (i.to(tl.float64) + 0.5) * load_f64(descriptor, MAP + 2 + axis)
    low = load_i32(descriptor, CLIP + axis)
    high = load_i32(descriptor, CLIP + 2 + axis)
    first = tl.maximum(tl.floor(centre - load_f64(descriptor, MAP + 4 + axis) + 0.5).to(tl.int32), low)
    distance = (first.to(tl.float64) + 0.5 - centre).to(tl.float32)
    extent = load_i32(descriptor, SOURCE + axis)
    slope = 1.0 / load_f32(descriptor, MAP + 4 + axis)
    in_clip = distance * 0.0
    in_image = in_clip
    for k in range(load_i32(descriptor, TAPS + axis)):
        j = first + k
        weight = tl.where(j < high, _triangle(distance, k, slope), 0.0)
        in_clip += weight
        in_image += tl.where((j >= 0) & (j < extent), weight, 0.0)
    return first, distance, in_clip, in_image, (centre >= low) & (centre < high)


@device_function
def _triangle(distance, k, slope):  # type: ignore[no-untyped-def]
    """Weights before normalisation, ``k`` pixels after the first one."""
    return tl.maximum(1.0 - tl.abs(distance + k) * slope, 0.0)


@device_function
def _filtered(descriptor, y, x):  # type: ignore[no-untyped-def]
    """Antialiased resampling. Loads of the descriptor precede the loops, since a compiler need not hoist them."""
    first_x, distance_x, clip_x, image_x, seen_x = _window(descriptor, x, 0)
    first_y, distance_y, clip_y, image_y, seen_y = _window(descriptor, y, 1)
    total = clip_y * clip_x
    outside = total - image_y * image_x
    red, green, blue = load_level(descriptor, FILL), load_level(descriptor, FILL + 1), load_level(descriptor, FILL + 2)
    r, g, b = outside * red, outside * green, outside * blue
    source = tl.load(descriptor + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane = tl.load(descriptor + PLANE)
    width = load_i32(descriptor, SOURCE)
    end_x = tl.minimum(width, load_i32(descriptor, CLIP + 2))
    end_y = tl.minimum(load_i32(descriptor, SOURCE + 1), load_i32(descriptor, CLIP + 3))
    slope_x, slope_y = 1.0 / load_f32(descriptor, MAP + 4), 1.0 / load_f32(descriptor, MAP + 5)
    taps_x = load_i32(descriptor, TAPS)
    for v in range(load_i32(descriptor, TAPS + 1)):
        j = first_y + v
        weight_y = _triangle(distance_y, v, slope_y)
        known_y = (j >= 0) & (j < end_y)
        line = source + j * width
        for u in range(taps_x):
            i = first_x + u
            weight = weight_y * _triangle(distance_x, u, slope_x)
            known = known_y & (i >= 0) & (i < end_x)
            pixel = line + i
            r += weight * tl.load(pixel, known, 0).to(tl.float32)
            g += weight * tl.load(pixel + plane, known, 0).to(tl.float32)
            b += weight * tl.load(pixel + 2 * plane, known, 0).to(tl.float32)
    # A pixel whose centre lies within the clip gives weight to the source pixel under it, so its ``total`` is not 0.
    seen = seen_y & seen_x
    scale = 1.0 / tl.where(seen, total, 1.0)
    r = tl.where(seen, tl.floor(r * scale + _HALF_LEVEL), red)
    g = tl.where(seen, tl.floor(g * scale + _HALF_LEVEL), green)
    b = tl.where(seen, tl.floor(b * scale + _HALF_LEVEL), blue)
    return r, g, b


@device_function
def _interpolated(descriptor, y, x):  # type: ignore[no-untyped-def]
    """Bilinear interpolation: outside of the clip its border is repeated, outside of the image there is ``fill``."""
    left, right, fx = _neighbours(descriptor, y, x, 0)
    top, bottom, fy = _neighbours(descriptor, y, x, 1)
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
def _neighbours(descriptor, y, x, axis: tl.constexpr):  # type: ignore[no-untyped-def]
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
    """The three levels of a neighbour times its weight."""
    source = tl.load(descriptor + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane = tl.load(descriptor + PLANE)
    known = (y >= 0) & (y < load_i32(descriptor, SOURCE + 1)) & (x >= 0) & (x < load_i32(descriptor, SOURCE))
    pixel = source + y * load_i32(descriptor, SOURCE) + x
    r = tl.load(pixel, known, 0).to(tl.int32)
    g = tl.load(pixel + plane, known, 0).to(tl.int32)
    b = tl.load(pixel + 2 * plane, known, 0).to(tl.int32)
    r = tl.where(known, r, load_i32(descriptor, FILL))
    g = tl.where(known, g, load_i32(descriptor, FILL + 1))
    b = tl.where(known, b, load_i32(descriptor, FILL + 2))
    return r * weight, g * weight, b * weight


@device_function
def _visible_weight(descriptor, y, x, count):  # type: ignore[no-untyped-def]
    """The part of each pixel inside of the edges: int32 up to ``_ONE``."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    seen = tl.full((TILE_HEIGHT, TILE_WIDTH), 1.0, tl.float64)
    edge = descriptor + load_i32(descriptor, EDGES)
    for _ in range(count):
        inside = load_f64(edge, 0) * across + load_f64(edge, 1) * down + load_f64(edge, 2) + 0.5
        seen *= tl.minimum(tl.maximum(inside, 0.0), 1.0)
        edge += EDGE
    return (seen * _ONE + 0.5).to(tl.int32)


@device_function
def _blended(value, fill, weight):  # type: ignore[no-untyped-def]
    return _rounded(value.to(tl.int32) * weight + fill * (_ONE - weight))
