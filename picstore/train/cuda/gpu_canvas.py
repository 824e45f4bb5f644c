"""Steps on the GPU that read other pixels of a canvas, with the same results as ``train/cpu``, bit for bit.

Each step begins a phase, and reads the levels of the previous phase.
"""

from __future__ import annotations

from picstore.train.cuda.augment_layout import KEY, OPERANDS, SIZE, load_f32, load_f64, load_i32
from picstore.train.cuda.gpu_color import random_bits, reflected, rounded, smoothed, smoothing_row
from picstore.train.cuda.triton_jit import device_function, tl
from picstore.train.transforms import opcodes

_ELASTIC, _SAMPLING, _FILL = tl.constexpr(opcodes.ELASTIC), tl.constexpr(opcodes.SAMPLING), tl.constexpr(opcodes.FILL)
_NEAREST, _BILINEAR = tl.constexpr(opcodes.NEAREST), tl.constexpr(opcodes.BILINEAR)
_PILLOW_BILINEAR = tl.constexpr(opcodes.PILLOW_BILINEAR)

_THIRTEENTH, _TO_UNIT = tl.constexpr(1 / 13), tl.constexpr(2.0**-23)
_BITS = tl.constexpr(12)  # number of fractional bits of a position in pixels
_ONE, _HALF, _FRACTION = tl.constexpr(1 << 12), tl.constexpr(1 << 11), tl.constexpr((1 << 12) - 1)
_PER_ONE = tl.constexpr(2.0**-12)


@device_function
def sharpened(descriptor, step, levels, y, x):
    """Run a sharpness step: return the pixels (y, x) of ``levels``, blended with a smoothed copy of ``levels``."""
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    rest = load_f32(step, OPERANDS + 1)
    plane = width * height
    r = _sharpened(levels, y, x, width, height, rest)
    g = _sharpened(levels + plane, y, x, width, height, rest)
    b = _sharpened(levels + 2 * plane, y, x, width, height, rest)
    return r, g, b


@device_function
def _sharpened(plane, y, x, width, height, rest):
    level = tl.load(plane + y * width + x, (y < height) & (x < width), 0).to(tl.float32)
    inner = (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    total = 4.0 * level
    for down in range(-1, 2):
        for across in range(-1, 2):
            total += tl.load(plane + (y + down) * width + (x + across), inner, 0).to(tl.float32)
    sharp = level + rest * (rounded(total * _THIRTEENTH) - level)
    return tl.where(inner, tl.floor(tl.minimum(tl.maximum(sharp, 0.0), 255.0)), level)


@device_function
def looked_up(descriptor, levels, table, y, x):
    """Return new levels of the pixels (y, x) of ``levels``: ``table``, uint8 (3, 256), has each level's new value."""
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    inside = (y < height) & (x < width)
    pixel, plane = levels + y * width + x, width * height
    r = tl.load(table + tl.load(pixel, inside, 0).to(tl.int32)).to(tl.float32)
    g = tl.load(table + 256 + tl.load(pixel + plane, inside, 0).to(tl.int32)).to(tl.float32)
    b = tl.load(table + 512 + tl.load(pixel + 2 * plane, inside, 0).to(tl.int32)).to(tl.float32)
    return r, g, b


@device_function
def displaced_row(table, step, axis: tl.constexpr, y, x, width, height):
    """Return an elastic step's noise along ``axis`` at pixels (y, x), float32, blurred only along rows so far."""
    groups, weights = smoothing_row(table, step, 2 * axis)
    first = axis * height * width + y * width
    key = tl.load(step + KEY).to(tl.uint64)
    value = tl.load(weights) * _uniform(key, first + x)
    for group in range(groups):
        k = 1 + 4 * group
        a, b = _uniform_pair(key, first, x, k, width, weights), _uniform_pair(key, first, x, k + 1, width, weights)
        c, d = _uniform_pair(key, first, x, k + 2, width, weights), _uniform_pair(key, first, x, k + 3, width, weights)
        value += (a + b) + (c + d)
    return value


@device_function
def _uniform_pair(key, first, x, k, width, weights):
    low, high = _uniform(key, first + reflected(x - k, width)), _uniform(key, first + reflected(x + k, width))
    return tl.load(weights + k) * (low + high)


@device_function
def _uniform(key, counter):
    bits = random_bits(key, counter.to(tl.int64)) >> 40
    return bits.to(tl.int32).to(tl.float32) * _TO_UNIT - 1.0


@device_function
def _displacement(table, rows, step, axis: tl.constexpr, y, x, width, height):
    """Return an elastic step's noise along ``axis`` at pixels (y, x), float64.

    ``rows`` holds the noise that was blurred along rows; this function blurs it along columns.
    """
    groups, weights = smoothing_row(table, step, 2 * axis + 1)
    column = axis * height * width + tl.minimum(x, width - 1)
    return smoothed(rows, column, tl.minimum(y, height - 1), height, width, groups, weights).to(tl.float64)


@device_function
def moved(table, descriptor, step, levels, rows, y, x):
    """Return the pixels (y, x) of the previous phase's image, moved by a ``WARP`` or ``ELASTIC`` step."""
    width, height = load_i32(descriptor, SIZE), load_i32(descriptor, SIZE + 1)
    across, down = x.to(tl.float64) + 0.5, y.to(tl.float64) + 0.5
    if load_i32(step, 0) == _ELASTIC:
        to_x = across + load_f64(step, OPERANDS) * _displacement(table, rows, step, 0, y, x, width, height)
        to_y = down + load_f64(step, OPERANDS + 1) * _displacement(table, rows, step, 1, y, x, width, height)
    else:
        depth = load_f64(step, OPERANDS + 6) * across + load_f64(step, OPERANDS + 7) * down + 1.0
        to_x = _mapped(step + OPERANDS, across, down) / depth
        to_y = _mapped(step + OPERANDS + 3, across, down) / depth
    sampling = load_i32_of(step, OPERANDS + _SAMPLING)
    if sampling == _NEAREST:
        r, g, b = _nearest(step, levels, _fixed(to_y, 1.0, 0.0, height), _fixed(to_x, 1.0, 0.0, width), width, height)
    else:
        at_x, at_y = _fixed(to_x, 4096.0, -2047.5, width), _fixed(to_y, 4096.0, -2047.5, height)
        if (sampling == _BILINEAR) | (sampling == _PILLOW_BILINEAR):
            r, g, b = _linear(step, levels, at_y, at_x, width, height, sampling == _PILLOW_BILINEAR)
        else:
            r, g, b = _cubic(levels, at_y, at_x, width, height)
        if sampling != _BILINEAR:
            r, g, b = _filled_outside(step, r, g, b, at_y, at_x, width, height)
    return r, g, b


@device_function
def load_i32_of(words, index):
    """Load ``words[index]``, which holds a float64, and convert it to int32."""
    return load_f64(words, index).to(tl.int32)


@device_function
def _mapped(words, across, down):
    return load_f64(words, 0) * across + load_f64(words, 1) * down + load_f64(words, 2)


@device_function
def _fixed(at, scale: tl.constexpr, shift: tl.constexpr, extent):
    """Return ``at`` · scale + shift, limited to the range from −1 to ``extent`` + 1 pixels, rounded down to int32."""
    at = at * scale + shift
    at = tl.where(at > -scale, at, -scale)  # The comparison is false for NaN, which so becomes -scale.
    return tl.floor(tl.minimum(at, (extent + 1).to(tl.float64) * scale - 1.0)).to(tl.int32)


@device_function
def _fill_level(step, channel: tl.constexpr):
    return tl.maximum(load_f32(step, OPERANDS + _FILL + channel), 0.0)


@device_function
def _nearest(step, levels, y, x, width, height):
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixel, plane = levels + y * width + x, width * height
    r = tl.where(inside, tl.load(pixel, inside, 0).to(tl.float32), _fill_level(step, 0))
    g = tl.where(inside, tl.load(pixel + plane, inside, 0).to(tl.float32), _fill_level(step, 1))
    b = tl.where(inside, tl.load(pixel + 2 * plane, inside, 0).to(tl.float32), _fill_level(step, 2))
    return r, g, b


@device_function
def _linear(step, levels, at_y, at_x, width, height, pillow):
    """Interpolate bilinearly, as Pillow does if ``pillow`` is true, otherwise as torchvision does.

    Pillow repeats border pixels and truncates levels; torchvision blends border pixels with the fill and rounds levels.
    """
    fx, fy = at_x & _FRACTION, at_y & _FRACTION
    x, y = at_x >> _BITS, at_y >> _BITS
    both = (fx * fy + _HALF) >> _BITS
    plane = width * height
    r, g, b, seen = at_x * 0, at_x * 0, at_x * 0, at_x * 0
    for k in tl.static_range(4):
        if k == 0:
            i, j, weight = y, x, _ONE - fx - fy + both
        elif k == 1:
            i, j, weight = y, x + 1, fx - both
        elif k == 2:
            i, j, weight = y + 1, x, fy - both
        else:
            i, j, weight = y + 1, x + 1, both
        i = tl.where(pillow, tl.minimum(tl.maximum(i, 0), height - 1), i)
        j = tl.where(pillow, tl.minimum(tl.maximum(j, 0), width - 1), j)
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        pixel = levels + i * width + j
        r += weight * tl.load(pixel, inside, 0).to(tl.int32)
        g += weight * tl.load(pixel + plane, inside, 0).to(tl.int32)
        b += weight * tl.load(pixel + 2 * plane, inside, 0).to(tl.int32)
        seen += tl.where(inside, weight, 0)
    half = tl.where(pillow, 0, _HALF)
    blends = seen < tl.where(load_f32(step, OPERANDS + _FILL) >= 0, _ONE, 0)
    r = tl.where(blends, _blended(r, seen, _fill_level(step, 0)), ((r + half) >> _BITS).to(tl.float32))
    g = tl.where(blends, _blended(g, seen, _fill_level(step, 1)), ((g + half) >> _BITS).to(tl.float32))
    b = tl.where(blends, _blended(b, seen, _fill_level(step, 2)), ((b + half) >> _BITS).to(tl.float32))
    return r, g, b


@device_function
def _blended(total, seen, fill):
    return rounded((total.to(tl.float32) * _PER_ONE - fill) * (seen.to(tl.float32) * _PER_ONE) + fill)


@device_function
def _cubic_weights(t):
    square, cube = t * t, t * t * t
    return 2.0 * square - cube - t, 1.0 - 2.0 * square + cube, t + square - cube, cube - square


@device_function
def _cubic(levels, at_y, at_x, width, height):
    """Interpolate by Pillow's bicubic filter, which repeats border pixels and truncates levels."""
    plane = width * height
    p, q, r, s = _cubic_weights((at_x & _FRACTION).to(tl.float32) * _PER_ONE)
    w0, w1, w2, w3 = _cubic_weights((at_y & _FRACTION).to(tl.float32) * _PER_ONE)
    x, y = at_x >> _BITS, at_y >> _BITS
    x0, x1 = _clamped(x - 1, width), _clamped(x, width)
    x2, x3 = _clamped(x + 1, width), _clamped(x + 2, width)
    red, green, blue = p * 0.0, p * 0.0, p * 0.0
    for k in tl.static_range(4):
        weight = w0 if k == 0 else w1 if k == 1 else w2 if k == 2 else w3
        line = levels + _clamped(y + (k - 1), height) * width
        red += _cubic_row(line, x0, x1, x2, x3, p, q, r, s) * weight
        green += _cubic_row(line + plane, x0, x1, x2, x3, p, q, r, s) * weight
        blue += _cubic_row(line + 2 * plane, x0, x1, x2, x3, p, q, r, s) * weight
    return _truncated(red), _truncated(green), _truncated(blue)


@device_function
def _clamped(i, extent):
    return tl.minimum(tl.maximum(i, 0), extent - 1)


@device_function
def _cubic_row(line, x0, x1, x2, x3, p, q, r, s):
    level = p * tl.load(line + x0).to(tl.float32) + q * tl.load(line + x1).to(tl.float32)
    return level + (r * tl.load(line + x2).to(tl.float32) + s * tl.load(line + x3).to(tl.float32))


@device_function
def _truncated(value):
    return tl.floor(tl.minimum(tl.maximum(value, 0.0), 255.0))


@device_function
def _filled_outside(step, r, g, b, at_y, at_x, width, height):
    """Replace r, g and b by the fill in pixels whose source positions lie outside of the image, as Pillow does."""
    inside = (at_x >= -_HALF) & (at_x < width * _ONE - _HALF) & (at_y >= -_HALF) & (at_y < height * _ONE - _HALF)
    r = tl.where(inside, r, _fill_level(step, 0))
    g = tl.where(inside, g, _fill_level(step, 1))
    b = tl.where(inside, b, _fill_level(step, 2))
    return r, g, b


@device_function
def mixed(step, levels, sums, originals, plane, pixel, inside):
    """Run a ``MIX`` step of AugMix on a plane: add ``levels``, times the step's weight, to ``sums``.

    Return the plane's next levels: the original levels, as input of the next chain, or after the last chain the sum.
    """
    weight, position = load_f32(step, OPERANDS), load_i32_of(step, OPERANDS + 1)
    level = tl.load(levels + plane + pixel, inside, 0).to(tl.float32)
    total = weight * level
    if position == 0:
        tl.store(originals + plane + pixel, level.to(tl.uint8), inside)
    else:
        total = tl.load(sums + plane + pixel, inside, 0) + total
    if position == 2:
        level = tl.floor(tl.minimum(total, 255.0))
    else:
        tl.store(sums + plane + pixel, total, inside)
        if position == 1:
            level = tl.load(originals + plane + pixel, inside, 0).to(tl.float32)
    return level
