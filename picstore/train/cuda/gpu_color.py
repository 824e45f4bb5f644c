"""Color steps on a tile on the GPU, in the arithmetic of the CPU's kernels: equal to the bit.

Pointwise steps follow each other in registers (``run_steps``). Contrast, which needs the mean grey level of the image,
and steps that need other pixels begin a new phase, another launch (``kernels.py``). Before normalization values are
whole grey levels in float32.
"""

from __future__ import annotations

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
from picstore.train.cuda.noise import random_bits, random_normals
from picstore.train.cuda.triton_jit import device_function, tl
from picstore.train.transforms import opcodes

ERASE_NORMALS = 20  # ERASE_RANDOM after NORMALIZE; in addition to opcodes.py
SMOOTHING_ROW = 4  # operand of blurs and elastic displacements: number of the first row of weights

_SCALE = tl.constexpr(opcodes.SCALE)
_SATURATION = tl.constexpr(opcodes.SATURATION)
_HUE = tl.constexpr(opcodes.HUE)
_SOLARIZE = tl.constexpr(opcodes.SOLARIZE)
_POSTERIZE = tl.constexpr(opcodes.POSTERIZE)
_SOLARIZE_ADD = tl.constexpr(opcodes.SOLARIZE_ADD)
_PERMUTE = tl.constexpr(opcodes.PERMUTE)
_NOISE = tl.constexpr(opcodes.NOISE)
_ERASE = tl.constexpr(opcodes.ERASE)
_ERASE_RANDOM = tl.constexpr(opcodes.ERASE_RANDOM)
_SMOOTHING_ROW = tl.constexpr(SMOOTHING_ROW)
_ERASE_NORMALS = tl.constexpr(ERASE_NORMALS)
_NORMALIZE = tl.constexpr(opcodes.NORMALIZE)

_TO_BYTE = tl.constexpr((256 - 1e-3) / 255)
_SIXTH = tl.constexpr(1 / 6)
_PER_LEVEL = tl.constexpr(1 / 255)
_ROUND = tl.constexpr(1.5 * 2**23)  # added and subtracted, it rounds to integers, ties to even


@device_function
def run_steps(descriptor, begin, end, r, g, b, y, x):  # noqa: C901 - a branch an opcode
    """Run the steps ``begin`` … ``end`` on the pixels (y, x)."""
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
    """Whole grey levels, as torchvision computes them."""
    return tl.floor(0.2989 * r + 0.587 * g + 0.114 * b)


@device_function
def blended(value, factor, offset):
    """Levels times ``factor`` plus ``offset``, clipped, as whole levels."""
    return tl.floor(tl.minimum(tl.maximum(factor * value + offset, 0.0), 255.0))


@device_function
def smoothing_row(table, step, number):
    """Find a row of weights of a step: its number of groups, and where the weights begin."""
    pitch, first = tl.load(table + SMOOTHING_PITCH), load_f32(step, OPERANDS + _SMOOTHING_ROW).to(tl.int64)
    row = (table + tl.load(table + SMOOTHING)).to(tl.pointer_type(tl.float32)) + (first + number) * pitch
    return tl.load(row).to(tl.int32), row + 1


@device_function
def smoothed(source, fixed, i, extent, stride, groups, weights):
    """One pass of a Gaussian blur, with reflection at the border, in the order of ``train/cpu/blur.py``.

    Args:
        source: pointer to a plane.
        fixed: offsets of the pixels' lines.
        i: int32, the pixels' indices along the axis, 0 … extent − 1.
        extent: pixels along the axis.
        stride: elements from one pixel to the next.
        groups, weights: of ``smoothing_row``.
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
    """The taps k before and after a pixel, weighted."""
    low = tl.load(source + reflected(i - k, extent) * stride).to(tl.float32)
    high = tl.load(source + reflected(i + k, extent) * stride).to(tl.float32)
    return tl.load(weights + k) * (low + high)


@device_function
def rounded(value):
    """Round levels to integers."""
    return (value + _ROUND) - _ROUND


@device_function
def reflected(i, extent):
    """Reflect indices at the first and the last element, repeatedly."""
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
    """Turn the hue by sixths of a turn, as ``train/cpu/pointwise_color.py``."""
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
    """Erase a box with one color or with random values."""
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
    """Whether pixels lie in the step's box."""
    left, top = load_f32(step, OPERANDS), load_f32(step, OPERANDS + 1)
    right, bottom = load_f32(step, OPERANDS + 2), load_f32(step, OPERANDS + 3)
    return (y >= top) & (y < bottom) & (x >= left) & (x < right)


@device_function
def _index_in_box(step, y, x, channel: tl.constexpr):
    """Indices of values in the step's box, int64; arbitrary outside of it."""
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
