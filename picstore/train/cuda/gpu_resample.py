"""Resampling of an output tile on the GPU: the pixels of ``kernels/resample.py`` and ``train/cpu/warp.py``.

An upright image is one antialiased resampling with weights from ``gpu_filter_weights.py``. The filter is separable, but
an output pixel sums its whole neighborhood at once: at scale s, (2 s)² loads of bytes, while two passes take
2 s + 2 s · s and memory in between. For a random crop (s ≤ 2.5 for most photographs at 224) these are 25 loads against
17, nearly all from the first-level cache, and one pass saves a launch and 2 × 150,528 values an image in memory. Larger
filters are rare, and such an image takes longer to decode than to resample.

Positions are float64 and sums are integers, with the operations of the CPU in the CPU's order.
"""

from __future__ import annotations

from picstore.kernels import filters
from picstore.train.cuda.augment_layout import (
    ADDRESS,
    AXES,
    CLIP,
    EDGE,
    EDGES,
    FILL,
    FILTER,
    MAP,
    PITCH,
    PLANE,
    SIZE,
    SLANTED,
    SOURCE,
    TILE_HEIGHT,
    TILE_WIDTH,
    WEIGHTS,
    load_f64,
    load_i32,
)
from picstore.train.cuda.gpu_filter_weights import FIRSTS, cubic
from picstore.train.cuda.triton_jit import device_function, tl

_BILINEAR = tl.constexpr(filters.BILINEAR)  # For slanted images, smaller codes take the nearest pixel.
_SHARP, _PLAIN = tl.constexpr(filters.SHARP_CUBIC), tl.constexpr(filters.PLAIN_CUBIC)
_TIE = tl.constexpr(filters.TIE)
_UNITY = tl.constexpr(1 << filters.ONE_BITS)
_ROW_BITS, _DROPPED = tl.constexpr(filters.ROW_BITS), tl.constexpr(filters.ONE_BITS - filters.ROW_BITS)
_HALF_ROW = tl.constexpr(1 << (filters.ONE_BITS - filters.ROW_BITS - 1))
_PIXEL_BITS = tl.constexpr(filters.ONE_BITS + filters.ROW_BITS)
_HALF_PIXEL = tl.constexpr(1 << (filters.ONE_BITS + filters.ROW_BITS - 1))
_BITS, _ONE = tl.constexpr(filters.POSITION_BITS), tl.constexpr(1 << filters.POSITION_BITS)
_HALF = tl.constexpr(1 << (filters.POSITION_BITS - 1))
_GENTLE, _UNIT = tl.constexpr(filters.GENTLE), tl.constexpr(float(1 << 32))
_TO_BITS, _HALF_STEP = tl.constexpr(32 - filters.POSITION_BITS), tl.constexpr(1 << (31 - filters.POSITION_BITS))


@device_function
def sampled(table, descriptor, y, x):
    """Return red, green and blue of the output pixels in rows ``y``, int32 (h, 1), and columns ``x``, int32 (1, w).

    Levels are whole numbers as float32 (h, w).
    """
    interpolation = load_i32(descriptor, FILTER)
    if load_i32(descriptor, SLANTED) == 0:
        r, g, b = _filtered(table, descriptor, y, x)
    elif interpolation == _BILINEAR:
        r, g, b = _interpolated(descriptor, y, x)
    elif interpolation < _BILINEAR:
        r, g, b = _nearest(descriptor, y, x)
    else:
        r, g, b = _bicubic(descriptor, y, x)
    count = load_i32(descriptor, EDGES + 1)
    if count > 0:
        if interpolation < _BILINEAR:
            weight = _visible_run(descriptor, y, x, count)
        else:
            weight = _visible_weight(descriptor, y, x, count)
        r = _blended(r, load_i32(descriptor, FILL), weight)
        g = _blended(g, load_i32(descriptor, FILL + 1), weight)
        b = _blended(b, load_i32(descriptor, FILL + 2), weight)
    return r, g, b


@device_function
def _filtered(table, descriptor, y, x):
    """Resample an unrotated image; return red, green and blue of the output pixels (y, x).

    Sums along columns come first, with 6 fractional bits, and then sums along rows, as on the CPU.
    """
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    weights = tl.load(table + WEIGHTS).to(tl.pointer_type(tl.int32))
    across, down = weights + tl.load(descriptor + AXES), weights + tl.load(descriptor + AXES + 1)
    taps_x, taps_y = tl.load(across), tl.load(down)
    across += FIRSTS + tl.minimum(x, width - 1)  # A tile's pixels beyond the output are computed but not stored.
    down += FIRSTS + tl.minimum(y, height - 1)
    first_x, first_y = tl.load(across), tl.load(down)
    missing_x, missing_y = tl.load(across + width), tl.load(down + height)
    red, green, blue = load_i32(descriptor, FILL), load_i32(descriptor, FILL + 1), load_i32(descriptor, FILL + 2)
    above_r, above_g, above_b = _beside(red, missing_y), _beside(green, missing_y), _beside(blue, missing_y)
    r = (red << _ROW_BITS) * missing_x + _HALF_PIXEL + y * 0
    g = (green << _ROW_BITS) * missing_x + _HALF_PIXEL + y * 0
    b = (blue << _ROW_BITS) * missing_x + _HALF_PIXEL + y * 0
    source = tl.load(descriptor + ADDRESS).to(tl.pointer_type(tl.uint8))
    plane, pitch = tl.load(descriptor + PLANE), load_i32(descriptor, PITCH)
    source_g, source_b = source + plane, source + 2 * plane
    last_x, last_y = load_i32(descriptor, SOURCE) - 1, load_i32(descriptor, SOURCE + 1) - 1
    across += 2 * width
    for u in range(taps_x):
        weight_x = tl.load(across + u * width)
        i = tl.minimum(first_x + u, last_x)  # This only keeps the read within the image; weights beyond it are 0.
        row_r = y * 0 + x * 0 + _HALF_ROW
        row_g = row_r
        row_b = row_r
        j = first_y
        weights_y = down + 2 * height
        for _ in range(taps_y):
            weight_y = tl.load(weights_y)
            at = (tl.minimum(j, last_y) * pitch + i).to(tl.uint32)
            row_r += weight_y * tl.load(source + at).to(tl.int32)
            row_g += weight_y * tl.load(source_g + at).to(tl.int32)
            row_b += weight_y * tl.load(source_b + at).to(tl.int32)
            j += 1
            weights_y += height
        r += weight_x * ((row_r >> _DROPPED) + above_r)
        g += weight_x * ((row_g >> _DROPPED) + above_g)
        b += weight_x * ((row_b >> _DROPPED) + above_b)
    return _level(r), _level(g), _level(b)


@device_function
def _beside(fill, missing):
    """Return fill · missing with 6 fractional bits; ``missing`` is the weight of pixels that the image lacks."""
    return (fill * missing + _HALF_ROW) >> _DROPPED


@device_function
def _level(total):
    """Return ``total``, a weighted sum plus half a level, as a level; clip it, because some weights are negative."""
    return tl.minimum(tl.maximum(total >> _PIXEL_BITS, 0), 255).to(tl.float32)


@device_function
def _position(descriptor, y, x, axis: tl.constexpr):
    """Compute where the output pixels (y, x) lie along one axis of the source image.

    Returns:
        Three values: float64 positions in source pixels, the first source pixel that may be read, and the last one.
        Positions end 2 pixels outside these bounds.
    """
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    matrix = descriptor + MAP + 3 * axis
    at = load_f64(matrix, 0) * across + load_f64(matrix, 1) * down + load_f64(matrix, 2)
    low = load_i32(descriptor, CLIP + axis)
    last = load_i32(descriptor, CLIP + 2 + axis) - 1
    return tl.minimum(tl.maximum(at, low - 2.0), last + 3.0), low, last


@device_function
def _nearest(descriptor, y, x):
    """Sample a rotated or sheared image at the nearest source pixels; borders are as for bilinear sampling."""
    at_x, left, right = _position(descriptor, y, x, 0)
    at_y, top, bottom = _position(descriptor, y, x, 1)
    i = tl.minimum(tl.maximum(tl.floor(at_x + _TIE).to(tl.int32), left), right)
    j = tl.minimum(tl.maximum(tl.floor(at_y + _TIE).to(tl.int32), top), bottom)
    r, g, b = _corner(descriptor, j, i, 1)
    return r.to(tl.float32), g.to(tl.float32), b.to(tl.float32)


@device_function
def _bicubic(descriptor, y, x):
    """Sample a rotated or sheared image by the bicubic filter; borders are as for bilinear sampling."""
    at_x, left, right = _position(descriptor, y, x, 0)
    at_y, top, bottom = _position(descriptor, y, x, 1)
    a = tl.where(load_i32(descriptor, FILTER + 1) != 0, _SHARP, _PLAIN).to(tl.float64)
    first_x, weights_x = _cubic_taps(at_x, a)
    first_y, weights_y = _cubic_taps(at_y, a)
    r = first_x * 0 + _HALF_PIXEL
    g = r
    b = r
    for v in range(4):  # not ``tl.static_range``, because the unrolled loop would take 189 registers a thread
        weight = _unpacked(weights_y, v)
        j = tl.minimum(tl.maximum(first_y + v, top), bottom)
        row_r = first_x * 0 + _HALF_ROW
        row_g = row_r
        row_b = row_r
        for u in range(4):
            i = tl.minimum(tl.maximum(first_x + u, left), right)
            red, green, blue = _corner(descriptor, j, i, _unpacked(weights_x, u))
            row_r += red
            row_g += green
            row_b += blue
        r += (row_r >> _DROPPED) * weight
        g += (row_g >> _DROPPED) * weight
        b += (row_b >> _DROPPED) * weight
    return _level(r), _level(g), _level(b)


@device_function
def _unpacked(weights, k):
    return (weights << (48 - 16 * k) >> 48).to(tl.int32)


@device_function
def _cubic_taps(position, a):
    """Return, along x or y, the first of four source pixels, and a word of four 16-bit weights, which add up to 1."""
    near = tl.floor(position - 0.5)
    away = position - 0.5 - near
    first, second, last = _whole(cubic(1.0 + away, a)), _whole(cubic(away, a)), _whole(cubic(2.0 - away, a))
    third = _UNITY - first - second - last
    low = (first & 0xFFFF).to(tl.int64) | (second & 0xFFFF).to(tl.int64) << 16
    return near.to(tl.int32) - 1, low | (third & 0xFFFF).to(tl.int64) << 32 | last.to(tl.int64) << 48


@device_function
def _whole(weight):
    return tl.floor(weight * _UNITY + 0.5).to(tl.int32)


@device_function
def _interpolated(descriptor, y, x):
    """Sample a rotated or sheared image bilinearly; beyond the clip its edge repeats; outside of the image is fill."""
    left, right, fx = _neighbors(descriptor, y, x, 0)
    top, bottom, fy = _neighbors(descriptor, y, x, 1)
    both = (fx * fy + _HALF) >> _BITS
    r0, g0, b0 = _corner(descriptor, top, left, _ONE - fx - fy + both)
    r1, g1, b1 = _corner(descriptor, top, right, fx - both)
    r2, g2, b2 = _corner(descriptor, bottom, left, fy - both)
    r3, g3, b3 = _corner(descriptor, bottom, right, both)
    return _rounded(r0 + r1 + r2 + r3), _rounded(g0 + g1 + g2 + g3), _rounded(b0 + b1 + b2 + b3)


@device_function
def _rounded(total):
    return ((total + _HALF) >> _BITS).to(tl.float32)


@device_function
def _neighbors(descriptor, y, x, axis: tl.constexpr):
    """Return, along x or y, the two source pixels beside each position, and the second's 12-bit weight."""
    low = load_i32(descriptor, CLIP + axis)
    last = load_i32(descriptor, CLIP + 2 + axis) - 1
    matrix = descriptor + MAP + 3 * axis
    down = y.to(tl.float64) + 0.5
    step = down * 0.0 + load_f64(matrix, 0)
    start = 0.5 * step + load_f64(matrix, 1) * down + load_f64(matrix, 2) - 0.5
    gentle = (tl.abs(step) * load_i32(descriptor, SIZE) < _GENTLE) & (tl.abs(start) < _GENTLE)
    first = tl.floor(tl.where(gentle, start, 0.0) * _UNIT).to(tl.int64) + _HALF_STEP
    by = tl.floor(tl.where(gentle, step, 0.0) * _UNIT + 0.5).to(tl.int64)
    at = step * (x.to(tl.float64) + 0.5) + load_f64(matrix, 1) * down + load_f64(matrix, 2) - 0.5
    at = tl.minimum(tl.maximum(at, low.to(tl.float64)), last.to(tl.float64))
    steps = tl.where(gentle, (first + x * by) >> _TO_BITS, tl.floor(at * _ONE + 0.5).to(tl.int64))
    steps = tl.minimum(tl.maximum(steps, low.to(tl.int64) << _BITS), last.to(tl.int64) << _BITS)
    near = (steps >> _BITS).to(tl.int32)
    return near, tl.minimum(near + 1, last), (steps & (_ONE - 1)).to(tl.int32)


@device_function
def _corner(descriptor, y, x, weight):
    """Return the color of source pixels (y, x) times ``weight``; outside of the image, the color is the fill."""
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
def _visible_weight(descriptor, y, x, count):
    """Return the part of each output pixel that no edge (half-plane) hides: int32, 0 to ``_ONE`` (the whole pixel)."""
    across = x.to(tl.float64) + 0.5
    down = y.to(tl.float64) + 0.5
    seen = tl.full((TILE_HEIGHT, TILE_WIDTH), 1.0, tl.float64)
    edge = descriptor + load_i32(descriptor, EDGES)
    for _ in range(count):
        inside = load_f64(edge, 0) * across + load_f64(edge, 1) * down + load_f64(edge, 2)
        seen *= tl.minimum(tl.maximum(inside + 0.5, 0.0), 1.0)
        edge += EDGE
    return (seen * _ONE + 0.5).to(tl.int32)


@device_function
def _visible_run(descriptor, y, x, count):
    """Return ``_ONE`` for output pixels whose centers no edge (half-plane) hides, else 0, as ``cpu/warp.py`` does."""
    down = y.to(tl.float64) + 0.5
    low = down * 0.0
    high = low + load_i32(descriptor, SIZE).to(tl.float64) - 1.0
    edge = descriptor + load_i32(descriptor, EDGES)
    for _ in range(count):
        slope = down * 0.0 + load_f64(edge, 0)
        spare = 0.5 * slope + down * load_f64(edge, 1) + load_f64(edge, 2) + _TIE
        limit = -spare / tl.where(slope == 0.0, 1.0, slope)
        low = tl.where(slope > 0, tl.maximum(low, limit), low)
        high = tl.where(slope < 0, tl.minimum(high, limit), high)
        high = tl.where((slope == 0.0) & (spare < 0.0), -1.0, high)
        edge += EDGE
    seen = (low <= high) & (x >= tl.ceil(low)) & (x <= tl.floor(high))
    return tl.where(seen, _ONE, 0)


@device_function
def _blended(value, fill, weight):
    return _rounded(value.to(tl.int32) * weight + fill * (_ONE - weight))
