"""Steps of colour on the tile of an image, on the GPU: the arithmetic of the kernels of the CPU, to the bit.

Those that look at one pixel follow each other in registers (``run_steps``). Contrast, which needs the mean grey level
of the image, and blur, which needs neighbours, begin a new phase, another launch (``kernels.py``). Between steps the
values are whole grey levels in float32, up to where the image is normalised.
"""

from __future__ import annotations

from picstore.train.cuda.descriptor import KEY, NUMBERS, SIZE, STEP, STEPS, single, whole
from picstore.train.cuda.noise import random_bits, random_normals
from picstore.train.cuda.triton_jit import device_function, tl
from picstore.train.transforms import opcodes

ERASE_NORMALS = 20  # besides those of codes.py: what ERASE_RANDOM is behind NORMALIZE

_SCALE = tl.constexpr(opcodes.SCALE)
_SATURATION = tl.constexpr(opcodes.SATURATION)
_HUE = tl.constexpr(opcodes.HUE)
_SOLARIZE = tl.constexpr(opcodes.SOLARIZE)
_POSTERIZE = tl.constexpr(opcodes.POSTERIZE)
_NOISE = tl.constexpr(opcodes.NOISE)
_ERASE = tl.constexpr(opcodes.ERASE)
_ERASE_RANDOM = tl.constexpr(opcodes.ERASE_RANDOM)
_ERASE_NORMALS = tl.constexpr(ERASE_NORMALS)
_NORMALIZE = tl.constexpr(opcodes.NORMALIZE)

_TO_BYTE = tl.constexpr((256 - 1e-3) / 255)
_SIXTH = tl.constexpr(1 / 6)
_PER_LEVEL = tl.constexpr(1 / 255)
_ROUND = tl.constexpr(1.5 * 2**23)  # added and taken away, it leaves whole numbers, ties to even


@device_function
def run_steps(row, begin, end, r, g, b, y, x):  # type: ignore[no-untyped-def]
    """Run the steps ``begin`` … ``end`` on the pixels (y, x)."""
    for k in range(begin, end):
        step = row + whole(row, STEPS) + k * STEP
        code = whole(step, 0)
        if code == _NORMALIZE:
            r, g, b = _normalised(step, r, 0), _normalised(step, g, 1), _normalised(step, b, 2)
        elif code == _SCALE:
            factor = single(step, NUMBERS)
            r, g, b = blended(r, factor, 0.0), blended(g, factor, 0.0), blended(b, factor, 0.0)
        elif code == _SATURATION:
            factor = single(step, NUMBERS)
            grey = single(step, NUMBERS + 1) * grey_of(r, g, b)
            r, g, b = blended(r, factor, grey), blended(g, factor, grey), blended(b, factor, grey)
        elif code == _HUE:
            r, g, b = _turned(r, g, b, single(step, NUMBERS))
        elif code == _SOLARIZE:
            least = single(step, NUMBERS)
            r, g, b = _inverted(r, least), _inverted(g, least), _inverted(b, least)
        elif code == _POSTERIZE:
            width = single(step, NUMBERS)
            r, g, b = _posterized(r, width), _posterized(g, width), _posterized(b, width)
        elif code == _NOISE:
            r, g, b = _noisy(row, step, r, y, x, 0), _noisy(row, step, g, y, x, 1), _noisy(row, step, b, y, x, 2)
        else:
            r, g, b = _erased(step, code, r, g, b, y, x)
    return r, g, b


@device_function
def grey_of(r, g, b):  # type: ignore[no-untyped-def]
    """Whole grey levels, torchvision's."""
    return tl.floor(0.2989 * r + 0.587 * g + 0.114 * b)


@device_function
def blended(value, factor, offset):  # type: ignore[no-untyped-def]
    """``factor`` times the levels plus ``offset``, as whole levels."""
    return tl.floor(tl.minimum(tl.maximum(factor * value + offset, 0.0), 255.0))


@device_function
def smoothed(source, fixed, i, extent, stride, radius, slope, weight):  # type: ignore[no-untyped-def]
    """One axis of a Gaussian blur, mirrored at the border.

    Args:
        source: pointer to a plane, and ``fixed``, offsets of where the lines of the pixels begin.
        i: int32, the pixels' places along the axis, 0 … extent − 1.
        extent, stride: pixels along the axis, and elements from one to the next.
        radius: taps on either side.
        slope, weight: tap k has ``weight · exp(slope · k²)``.
    """
    total = weight * tl.load(source + fixed + i * stride).to(tl.float32)
    for k in range(1, radius + 1):
        low = tl.load(source + fixed + _reflected(i - k, extent) * stride).to(tl.float32)
        high = tl.load(source + fixed + _reflected(i + k, extent) * stride).to(tl.float32)
        distance = 1.0 * k
        total += weight * tl.exp(slope * distance * distance) * (low + high)
    return total


@device_function
def nearest(value):  # type: ignore[no-untyped-def]
    """Levels rounded to whole ones."""
    return (value + _ROUND) - _ROUND


@device_function
def _reflected(i, extent):  # type: ignore[no-untyped-def]
    period = tl.maximum(2 * (extent - 1), 1)
    i = tl.abs(i) % period
    return tl.where(i >= extent, period - i, i)


@device_function
def _normalised(step, value, channel: tl.constexpr):  # type: ignore[no-untyped-def]
    mean = single(step, NUMBERS + channel)
    deviation = single(step, NUMBERS + 3 + channel)
    return tl.math.div_rn(value * _PER_LEVEL - mean, tl.full(value.shape, 1.0, tl.float32) * deviation)


@device_function
def _turned(r, g, b, turns):  # type: ignore[no-untyped-def]
    """Turn the hue by sixths of a turn; see ``pointwise.py``."""
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
def _channel(k, top, span):  # type: ignore[no-untyped-def]
    k -= 6.0 * tl.floor(k * _SIXTH)
    return tl.floor(top - span * tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0))


@device_function
def _inverted(value, least):  # type: ignore[no-untyped-def]
    return tl.where(value >= least, 255.0 - value, value)


@device_function
def _posterized(value, width):  # type: ignore[no-untyped-def]
    return width * tl.floor(value * (1.0 / width))


@device_function
def _noisy(row, step, value, y, x, channel: tl.constexpr):  # type: ignore[no-untyped-def]
    width = whole(row, SIZE)
    pairs = (width.to(tl.int64) * whole(row, SIZE + 1) + 1) // 2
    normals = random_normals(tl.load(step + KEY).to(tl.uint64), 2 * channel * pairs + (y * width + x))
    added = single(step, NUMBERS) + single(step, NUMBERS + 1) * normals
    noisy = value + tl.where(added < 0, tl.ceil(added), tl.floor(added))
    clipped = tl.minimum(tl.maximum(noisy, 0.0), 255.0)
    wrapped = noisy - 256.0 * tl.floor(noisy * (1 / 256))
    return tl.where(single(step, NUMBERS + 2) != 0, clipped, wrapped)


@device_function
def _erased(step, code, r, g, b, y, x):  # type: ignore[no-untyped-def]
    """A box in one colour, or of random values."""
    if code == _ERASE:
        inside = _in_box(step, y, x)
        r = tl.where(inside, single(step, NUMBERS + 4), r)
        g = tl.where(inside, single(step, NUMBERS + 5), g)
        b = tl.where(inside, single(step, NUMBERS + 6), b)
    elif code == _ERASE_RANDOM:
        r, g, b = _levels(step, r, y, x, 0), _levels(step, g, y, x, 1), _levels(step, b, y, x, 2)
    elif code == _ERASE_NORMALS:
        r, g, b = _normals(step, r, y, x, 0), _normals(step, g, y, x, 1), _normals(step, b, y, x, 2)
    return r, g, b


@device_function
def _in_box(step, y, x):  # type: ignore[no-untyped-def]
    """Whether pixels lie in the step's box."""
    left, top = single(step, NUMBERS), single(step, NUMBERS + 1)
    right, bottom = single(step, NUMBERS + 2), single(step, NUMBERS + 3)
    return (y >= top) & (y < bottom) & (x >= left) & (x < right)


@device_function
def _number(step, y, x, channel: tl.constexpr):  # type: ignore[no-untyped-def]
    """The numbers of values in the step's box, int64; anything for those outside."""
    left, top = single(step, NUMBERS).to(tl.int32), single(step, NUMBERS + 1).to(tl.int32)
    width = single(step, NUMBERS + 2).to(tl.int32) - left
    height = single(step, NUMBERS + 3).to(tl.int32) - top
    return (channel * height + (y - top)).to(tl.int64) * width + (x - left)


@device_function
def _levels(step, value, y, x, channel: tl.constexpr):  # type: ignore[no-untyped-def]
    drawn = random_bits(tl.load(step + KEY).to(tl.uint64), _number(step, y, x, channel)) >> 56
    return tl.where(_in_box(step, y, x), drawn.to(tl.int32).to(tl.float32), value)


@device_function
def _normals(step, value, y, x, channel: tl.constexpr):  # type: ignore[no-untyped-def]
    drawn = random_normals(tl.load(step + KEY).to(tl.uint64), _number(step, y, x, channel))
    return tl.where(_in_box(step, y, x), drawn, value)
