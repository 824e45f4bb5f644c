"""Color steps on a tile on the GPU, and random numbers for pixels, equal to the CPU's bit for bit.

Pointwise steps follow each other in registers (``run_steps``). Contrast, which needs the mean grey level of the image,
and steps that need other pixels begin a new phase, in another launch (``augment_kernels.py``). Values are whole grey
levels in float32 until they are normalized. The float32 operations are those of the CPU's kernels, in the same order;
launches forbid the compiler to fuse them.
"""

from __future__ import annotations

import math

from picstore import rng
from picstore.train.cuda.augment_layout import (
    KEY,
    OPERANDS,
    SIZE,
    SMOOTHING,
    SMOOTHING_PITCH,
    STEP,
    STEPS,
    load_f32,
    load_i32,
)
from picstore.train.cuda.triton_jit import device_function, tl
from picstore.train.transforms import opcodes

ERASE_NORMALS = 20  # opcode on GPUs for ERASE_RANDOM after NORMALIZE: erase by normally distributed values
# Index, among the operands of a BLUR or ELASTIC step, of the operand that tells the step's first row of blur weights.
SMOOTHING_ROW = 4

_SCALE, _SATURATION, _HUE = tl.constexpr(opcodes.SCALE), tl.constexpr(opcodes.SATURATION), tl.constexpr(opcodes.HUE)
_SOLARIZE, _POSTERIZE = tl.constexpr(opcodes.SOLARIZE), tl.constexpr(opcodes.POSTERIZE)
_SOLARIZE_ADD, _PERMUTE = tl.constexpr(opcodes.SOLARIZE_ADD), tl.constexpr(opcodes.PERMUTE)
_NOISE, _ERASE = tl.constexpr(opcodes.NOISE), tl.constexpr(opcodes.ERASE)
_ERASE_RANDOM, _SMOOTHING_ROW = tl.constexpr(opcodes.ERASE_RANDOM), tl.constexpr(SMOOTHING_ROW)
_ERASE_NORMALS, _NORMALIZE = tl.constexpr(ERASE_NORMALS), tl.constexpr(opcodes.NORMALIZE)

_TO_BYTE, _SIXTH, _PER_LEVEL = tl.constexpr((256 - 1e-3) / 255), tl.constexpr(1 / 6), tl.constexpr(1 / 255)
_ROUND = tl.constexpr(1.5 * 2**23)  # Adding and subtracting this number rounds a float32 to an integer, ties to even.

_GOLDEN, _M1, _M2 = tl.constexpr(rng.GOLDEN), tl.constexpr(rng.MIX1), tl.constexpr(rng.MIX2)
_LOW31, _UNIT, _TURN = tl.constexpr((1 << 31) - 1), tl.constexpr(2.0**-31), tl.constexpr(math.pi / 4 * 2.0**-30)
_CENTER, _ROOT, _MANTISSA = tl.constexpr(2.0**30), tl.constexpr(0x3F3504F3), tl.constexpr((1 << 23) - 1)
_LN2, _L3, _L5, _L7 = tl.constexpr(math.log(2.0)), tl.constexpr(1 / 3), tl.constexpr(1 / 5), tl.constexpr(1 / 7)
_C4, _C6, _C8, _D3 = tl.constexpr(1 / 24), tl.constexpr(-1 / 720), tl.constexpr(1 / 40320), tl.constexpr(-1 / 6)
_D5, _D7, _D9 = tl.constexpr(1 / 120), tl.constexpr(-1 / 5040), tl.constexpr(1 / 362880)


@device_function
def run_steps(descriptor, begin, end, r, g, b, y, x):  # noqa: C901 - a branch an opcode
    """Run the steps ``begin`` … ``end`` - 1 on the pixels (y, x) with the values r, g, b; return the new values."""
    for k in range(begin, end):
        step = descriptor + load_i32(descriptor, STEPS) + k * STEP
        opcode = load_i32(step, 0)
        if opcode == _NORMALIZE:
            r, g, b = _normalized(step, r, 0), _normalized(step, g, 1), _normalized(step, b, 2)
        elif opcode == _SCALE:
            factor = load_f32(step, OPERANDS)
            r, g, b = blended(r, factor, 0.0), blended(g, factor, 0.0), blended(b, factor, 0.0)
        elif opcode == _SATURATION:
            factor = load_f32(step, OPERANDS)
            grey = load_f32(step, OPERANDS + 1) * grey_of(r, g, b)
            r, g, b = blended(r, factor, grey), blended(g, factor, grey), blended(b, factor, grey)
        elif opcode == _HUE:
            r, g, b = _turned(r, g, b, load_f32(step, OPERANDS))
        elif opcode == _SOLARIZE:
            least = load_f32(step, OPERANDS)
            r, g, b = _inverted(r, least), _inverted(g, least), _inverted(b, least)
        elif opcode == _POSTERIZE:
            width = load_f32(step, OPERANDS)
            r, g, b = _posterized(r, width), _posterized(g, width), _posterized(b, width)
        elif opcode == _SOLARIZE_ADD:
            added, most = load_f32(step, OPERANDS), load_f32(step, OPERANDS + 1)
            r, g, b = _brightened(r, added, most), _brightened(g, added, most), _brightened(b, added, most)
        elif opcode == _PERMUTE:
            first, second = load_f32(step, OPERANDS), load_f32(step, OPERANDS + 1)
            third = 3.0 - first - second
            r, g, b = _picked(first, r, g, b), _picked(second, r, g, b), _picked(third, r, g, b)
        elif opcode == _NOISE:
            r, g, b = (
                _noisy(descriptor, step, r, y, x, 0),
                _noisy(descriptor, step, g, y, x, 1),
                _noisy(descriptor, step, b, y, x, 2),
            )
        else:
            r, g, b = _erased(step, opcode, r, g, b, y, x)
    return r, g, b


@device_function
def grey_of(r, g, b):
    """Return the grey levels of the colors r, g, b, rounded down to integers, as torchvision does."""
    return tl.floor(0.2989 * r + 0.587 * g + 0.114 * b)


@device_function
def blended(value, factor, offset):
    """Return the levels ``value`` times ``factor`` plus ``offset``, clipped to 0 … 255 and rounded down."""
    return tl.floor(tl.minimum(tl.maximum(factor * value + offset, 0.0), 255.0))


@device_function
def smoothing_row(table, step, number):
    """Return, for row ``number`` of a blur's weights, the number of groups of 4 tap pairs and the weights' address."""
    pitch, first = tl.load(table + SMOOTHING_PITCH), load_f32(step, OPERANDS + _SMOOTHING_ROW).to(tl.int64)
    row = (table + tl.load(table + SMOOTHING)).to(tl.pointer_type(tl.float32)) + (first + number) * pitch
    return tl.load(row).to(tl.int32), row + 1


@device_function
def smoothed(source, fixed, i, extent, stride, groups, weights):
    """Run one pass of a Gaussian blur, reflected at the border, with the same rounding as the CPU's ``weighted_sum``.

    Args:
        source: pointer to a plane.
        fixed: offset in the plane of the row or column along which each pixel is blurred.
        i: int32, each pixel's index in its row or column, 0 … extent − 1.
        extent: number of pixels in a row or column.
        stride: number of elements from a pixel to the next.
        groups, weights: results of ``smoothing_row``.
    """
    source += fixed
    total = tl.load(weights) * tl.load(source + i * stride).to(tl.float32)
    for group in range(groups):
        k = 1 + 4 * group
        a, b = _pair(source, i, k, extent, stride, weights), _pair(source, i, k + 1, extent, stride, weights)
        c, d = _pair(source, i, k + 2, extent, stride, weights), _pair(source, i, k + 3, extent, stride, weights)
        total += (a + b) + (c + d)
    return total


@device_function
def _pair(source, i, k, extent, stride, weights):
    """Return the weighted sum of the two taps of a blur that lie ``k`` pixels before and after each pixel."""
    low = tl.load(source + reflected(i - k, extent) * stride).to(tl.float32)
    high = tl.load(source + reflected(i + k, extent) * stride).to(tl.float32)
    return tl.load(weights + k) * (low + high)


@device_function
def rounded(value):
    """Round levels to integers, ties to even."""
    return (value + _ROUND) - _ROUND


@device_function
def reflected(i, extent):
    """Return indices ``i`` reflected, as often as needed, at the first and the last of ``extent`` elements."""
    period = tl.maximum(2 * (extent - 1), 1)
    i = tl.abs(i) % period
    return tl.where(i >= extent, period - i, i)


@device_function
def _normalized(step, value, channel: tl.constexpr):
    mean = load_f32(step, OPERANDS + channel)
    deviation = load_f32(step, OPERANDS + 3 + channel)
    return tl.math.div_rn(value * _PER_LEVEL - mean, tl.full(value.shape, 1.0, tl.float32) * deviation)


@device_function
def _turned(r, g, b, turns):
    """Return r, g and b with the hue turned by ``turns`` sixths of a turn, as ``train/cpu/pointwise_color.py`` does."""
    v = tl.maximum(tl.maximum(r, g), b)
    d = v - tl.minimum(tl.minimum(r, g), b)
    across = tl.where(v == g, b - r, r - g)
    base = tl.where(v == g, 2.0, 4.0)
    across = tl.where(v == r, g - b, across)
    base = tl.where(v == r, 0.0, base)
    h = base + tl.math.div_rn(across, tl.maximum(d, 1.0)) + turns
    top = v * _TO_BYTE
    span = d * _TO_BYTE
    return _channel(h + 5.0, top, span), _channel(h + 3.0, top, span), _channel(h + 1.0, top, span)


@device_function
def _channel(k, top, span):
    k -= 6.0 * tl.floor(k * _SIXTH)
    return tl.floor(top - span * tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0))


@device_function
def _inverted(value, least):
    return tl.where(value >= least, 255.0 - value, value)


@device_function
def _posterized(value, width):
    return width * tl.floor(value * (1.0 / width))


@device_function
def _brightened(value, added, most):
    return tl.where(value < most, tl.minimum(value + added, 255.0), value)


@device_function
def _picked(channel, r, g, b):
    return tl.where(channel == 0, r, tl.where(channel == 1, g, b))


@device_function
def _noisy(descriptor, step, value, y, x, channel: tl.constexpr):
    width = load_i32(descriptor, SIZE)
    pairs = (width.to(tl.int64) * load_i32(descriptor, SIZE + 1) + 1) // 2
    normals = random_normals(tl.load(step + KEY).to(tl.uint64), 2 * channel * pairs + (y * width + x))
    added = load_f32(step, OPERANDS) + load_f32(step, OPERANDS + 1) * normals
    noisy = value + tl.where(added < 0, tl.ceil(added), tl.floor(added))
    clipped = tl.minimum(tl.maximum(noisy, 0.0), 255.0)
    wrapped = noisy - 256.0 * tl.floor(noisy * (1 / 256))
    return tl.where(load_f32(step, OPERANDS + 2) != 0, clipped, wrapped)


@device_function
def _erased(step, opcode, r, g, b, y, x):
    if opcode == _ERASE:
        inside = _in_box(step, y, x)
        r = tl.where(inside, load_f32(step, OPERANDS + 4), r)
        g = tl.where(inside, load_f32(step, OPERANDS + 5), g)
        b = tl.where(inside, load_f32(step, OPERANDS + 6), b)
    elif opcode == _ERASE_RANDOM:
        r, g, b = _random_levels(step, r, y, x, 0), _random_levels(step, g, y, x, 1), _random_levels(step, b, y, x, 2)
    elif opcode == _ERASE_NORMALS:
        r, g, b = (
            _random_normals(step, r, y, x, 0),
            _random_normals(step, g, y, x, 1),
            _random_normals(step, b, y, x, 2),
        )
    return r, g, b


@device_function
def _in_box(step, y, x):
    left, top = load_f32(step, OPERANDS), load_f32(step, OPERANDS + 1)
    right, bottom = load_f32(step, OPERANDS + 2), load_f32(step, OPERANDS + 3)
    return (y >= top) & (y < bottom) & (x >= left) & (x < right)


@device_function
def _index_in_box(step, y, x, channel: tl.constexpr):
    """Return pixels' indices in an array (3, h, w) for the step's box, int64; meaningless for pixels outside."""
    left, top = load_f32(step, OPERANDS).to(tl.int32), load_f32(step, OPERANDS + 1).to(tl.int32)
    width = load_f32(step, OPERANDS + 2).to(tl.int32) - left
    height = load_f32(step, OPERANDS + 3).to(tl.int32) - top
    return (channel * height + (y - top)).to(tl.int64) * width + (x - left)


@device_function
def _random_levels(step, value, y, x, channel: tl.constexpr):
    drawn = random_bits(tl.load(step + KEY).to(tl.uint64), _index_in_box(step, y, x, channel)) >> 56
    return tl.where(_in_box(step, y, x), drawn.to(tl.int32).to(tl.float32), value)


@device_function
def _random_normals(step, value, y, x, channel: tl.constexpr):
    drawn = random_normals(tl.load(step + KEY).to(tl.uint64), _index_in_box(step, y, x, channel))
    return tl.where(_in_box(step, y, x), drawn, value)


@device_function
def random_bits(key, counter):
    """Return 64 random bits, uint64, for a uint64 key and int64 counters, as ``rng.bits`` does."""
    z = key + (counter + 1).to(tl.uint64) * _GOLDEN
    z = (z ^ (z >> 30)) * _M1
    z = (z ^ (z >> 27)) * _M2
    return z ^ (z >> 31)


@device_function
def random_normals(key, number):
    """Return the normal random numbers of a uint64 key at int64 indices ``number``: float32, equal to the CPU's."""
    z = random_bits(key, number >> 1)
    uniform = ((z >> 33).to(tl.int32).to(tl.float32) + 0.5) * _UNIT
    a = (((z >> 2) & _LOW31).to(tl.int32).to(tl.float32) - _CENTER) * _TURN
    shifted = uniform.to(tl.int32, bitcast=True) - _ROOT
    exponent = (shifted >> 23).to(tl.float32)
    m = ((shifted & _MANTISSA) + _ROOT).to(tl.float32, bitcast=True)
    s = tl.math.div_rn(m - 1.0, m + 1.0)
    q = s * s
    log = exponent * _LN2 + 2.0 * s * (1.0 + q * (_L3 + q * (_L5 + q * _L7)))
    radius = tl.math.sqrt_rn(tl.maximum(-2.0 * log, 0.0))
    q = a * a
    cosine = radius * (1.0 + q * (-0.5 + q * (_C4 + q * (_C6 + q * _C8))))
    sine = radius * a * (1.0 + q * (_D3 + q * (_D5 + q * (_D7 + q * _D9))))
    choice = (z & 3).to(tl.int32)
    cosine = tl.where((choice & 1) != 0, -cosine, cosine)
    second = ((number & 1) != 0) != ((choice & 2) != 0)
    return tl.where(second, sine, cosine)
