"""The geometry of an output tile, on the GPU: what ``resample.py`` and ``train/affine.py`` do on the CPU.

An upright image is one antialiased resampling. The filter is separable, but an output pixel sums all of its
neighbourhood at once: at a scale of s that is (2 s)² loads of bytes where two passes make 2 s + 2 s · s and write and
read what is between them. For a random crop (s ≤ 2.5 for most photographs at 224) these are 25 against 17, nearly all
from the first-level cache, and it saves a launch and 2 × 150,528 values an image in memory. Larger filters than that
are rare, since such an image takes longer to decode than to resample.

Positions are float64 as on the CPU, so that what lies on an edge lies on the same side; weights are float32.
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
    SOURCE,
    TAPS,
    TILE_HEIGHT,
    TILE_WIDTH,
    TURNED,
    level,
    real,
    single,
    whole,
)
from picstore.train.cuda.triton_jit import device_function, tl

# Halves are frequent, as in the middle of two pixels. They are rounded up as on the CPU, though a sum of float32 may
# miss one by a ten-thousandth.
_HALF_LEVEL = tl.constexpr(0.5 + 2.0**-11)
_BITS = tl.constexpr(12)  # of a weight in interpolation
_ONE = tl.constexpr(1 << 12)
_HALF = tl.constexpr(1 << 11)


@device_function
def sampled(row, y, x):  # type: ignore[no-untyped-def]
    """Red, green, blue of an output's pixels: whole float32 levels.

    Args:
        row: of the image.
        y, x: int32 (h, 1) and (1, w).
    """
    if whole(row, TURNED):
        r, g, b = _interpolated(row, y, x)
    else:
        r, g, b = _filtered(row, y, x)
    count = whole(row, EDGES + 1)
    if count > 0:
        weight = _shown(row, y, x, count)
        r = _blended(r, whole(row, FILL), weight)
        g = _blended(g, whole(row, FILL + 1), weight)
        b = _blended(b, whole(row, FILL + 2), weight)
    return r, g, b


@device_function
def _window(row, i, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """One axis of the filter, for output pixels ``i``.

    Returns:
        The first source pixel of each; its distance from the middle of the filter; the sums of the weights that lie in
        the clip, and in the image too; and whether the middle lies in the clip.
    """
    length = whole(row, SIZE + axis)
    i = tl.where(whole(row, FLIP + axis) != 0, length - 1 - i, i)
    centre = real(row, MAP + axis) + (i.to(tl.float64) + 0.5) * real(row, MAP + 2 + axis)
    low = whole(row, CLIP + axis)
    high = whole(row, CLIP + 2 + axis)
    first = tl.maximum(tl.floor(centre - real(row, MAP + 4 + axis) + 0.5).to(tl.int32), low)
    distance = (first.to(tl.float64) + 0.5 - centre).to(tl.float32)
    extent = whole(row, SOURCE + axis)
    slope = 1.0 / single(row, MAP + 4 + axis)
    in_clip = distance * 0.0
    in_image = in_clip
    for k in range(whole(row, TAPS + axis)):
        j = first + k
        weight = tl.where(j < high, _triangle(distance, k, slope), 0.0)
        in_clip += weight
        in_image += tl.where((j >= 0) & (j < extent), weight, 0.0)
    return first, distance, in_clip, in_image, (centre >= low) & (centre < high)


@device_function
def _triangle(distance, k, slope):  # type: ignore[no-untyped-def]
    """Weights, not normalised yet, ``k`` pixels behind the first one."""
    return tl.maximum(1.0 - tl.abs(distance + k) * slope, 0.0)


@device_function
def _filtered(row, y, x):  # type: ignore[no-untyped-def]
    """Antialiased resampling. What the loops need of the row is read before: a compiler need not move loads."""
    first_x, distance_x, clip_x, image_x, seen_x = _window(row, x, 0)
    first_y, distance_y, clip_y, image_y, seen_y = _window(row, y, 1)
    total = clip_y * clip_x
    outside = total - image_y * image_x
    red, green, blue = level(row, FILL), level(row, FILL + 1), level(row, FILL + 2)
    r, g, b = outside * red, outside * green, outside * blue
    source = tl.load(row + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane = tl.load(row + PLANE)
    width = whole(row, SOURCE)
    end_x = tl.minimum(width, whole(row, CLIP + 2))
    end_y = tl.minimum(whole(row, SOURCE + 1), whole(row, CLIP + 3))
    slope_x, slope_y = 1.0 / single(row, MAP + 4), 1.0 / single(row, MAP + 5)
    taps_x = whole(row, TAPS)
    for v in range(whole(row, TAPS + 1)):
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
    # A pixel whose centre is in the clip gives weight to the source pixel under it, so its ``total`` is not 0.
    seen = seen_y & seen_x
    scale = 1.0 / tl.where(seen, total, 1.0)
    r = tl.where(seen, tl.floor(r * scale + _HALF_LEVEL), red)
    g = tl.where(seen, tl.floor(g * scale + _HALF_LEVEL), green)
    b = tl.where(seen, tl.floor(b * scale + _HALF_LEVEL), blue)
    return r, g, b


@device_function
def _interpolated(row, y, x):  # type: ignore[no-untyped-def]
    """Bilinear interpolation: what is outside of the clip looks like its border, outside of the image is ``fill``."""
    left, right, fx = _neighbours(row, y, x, 0)
    top, bottom, fy = _neighbours(row, y, x, 1)
    both = (fx * fy + _HALF) >> _BITS
    r0, g0, b0 = _corner(row, top, left, _ONE - fx - fy + both)
    r1, g1, b1 = _corner(row, top, right, fx - both)
    r2, g2, b2 = _corner(row, bottom, left, fy - both)
    r3, g3, b3 = _corner(row, bottom, right, both)
    return _rounded(r0 + r1 + r2 + r3), _rounded(g0 + g1 + g2 + g3), _rounded(b0 + b1 + b2 + b3)


@device_function
def _rounded(total):  # type: ignore[no-untyped-def]
    return ((total + _HALF) >> _BITS).to(tl.float32)


@device_function
def _neighbours(row, y, x, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    """The two nearest source pixels along an axis, and the 12-bit weight of the second."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    at = real(row, MAP + 3 * axis) * across + real(row, MAP + 3 * axis + 1) * down + real(row, MAP + 3 * axis + 2) - 0.5
    low = whole(row, CLIP + axis)
    last = whole(row, CLIP + 2 + axis) - 1
    at = tl.minimum(tl.maximum(at, low.to(tl.float64)), last.to(tl.float64))
    near = tl.floor(at)
    weight = tl.floor((at - near) * _ONE + 0.5).to(tl.int32)
    near = near.to(tl.int32)
    return near, tl.minimum(near + 1, last), weight


@device_function
def _corner(row, y, x, weight):  # type: ignore[no-untyped-def]
    """A neighbour's three levels times its weight."""
    source = tl.load(row + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane = tl.load(row + PLANE)
    known = (y >= 0) & (y < whole(row, SOURCE + 1)) & (x >= 0) & (x < whole(row, SOURCE))
    pixel = source + y * whole(row, SOURCE) + x
    r = tl.load(pixel, known, 0).to(tl.int32)
    g = tl.load(pixel + plane, known, 0).to(tl.int32)
    b = tl.load(pixel + 2 * plane, known, 0).to(tl.int32)
    r = tl.where(known, r, whole(row, FILL))
    g = tl.where(known, g, whole(row, FILL + 1))
    b = tl.where(known, b, whole(row, FILL + 2))
    return r * weight, g * weight, b * weight


@device_function
def _shown(row, y, x, count):  # type: ignore[no-untyped-def]
    """How much of each pixel the edges let be seen: int32 up to ``_ONE``."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    seen = tl.full((TILE_HEIGHT, TILE_WIDTH), 1.0, tl.float64)
    edge = row + whole(row, EDGES)
    for _ in range(count):
        inside = real(edge, 0) * across + real(edge, 1) * down + real(edge, 2) + 0.5
        seen *= tl.minimum(tl.maximum(inside, 0.0), 1.0)
        edge += EDGE
    return (seen * _ONE + 0.5).to(tl.int32)


@device_function
def _blended(value, fill, weight):  # type: ignore[no-untyped-def]
    return _rounded(value.to(tl.int32) * weight + fill * (_ONE - weight))
