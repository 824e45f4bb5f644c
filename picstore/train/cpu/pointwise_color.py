"""Pointwise color steps: brightness, contrast, saturation, hue, solarize, posterize, permutation, in one numba pass.

A pass takes ``_CHUNK`` pixels at a time. Chunks of the three planes become float32, all steps run on the chunks in the
first-level cache, and the chunks are written back as bytes. After each step, values are whole grey levels within
0 … 255. The arithmetic is torchvision's float32 arithmetic on uint8 images; a step differs by one level at most, if
torch fuses a multiplication with an addition. All loops run along planes, so that LLVM vectorizes them. float32
without reordering gives the same bits on every machine.
"""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, kernel
from picstore.train.transforms.opcodes import (
    CONTRAST,
    HUE,
    PERMUTE,
    POSTERIZE,
    SATURATION,
    SCALE,
    SOLARIZE,
    SOLARIZE_ADD,
)

_CHUNK = 1024  # number of pixels on which all steps run before the next pixels; 16 KB of float32 with grey levels
_UNKNOWN = -1.0  # value of the image's mean grey level before it is computed

_f32, _i32 = np.float32, np.int32
_ZERO, _ONE, _TWO, _FOUR, _SIX, _TOP = (np.float32(number) for number in (0, 1, 2, 4, 6, 255))
# torchvision's weights of red, green and blue in a grey level, which add up to 0.9999.
_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_SIXTH = np.float32(1 / 6)
_TO_BYTE = np.float32((256 - 1e-3) / 255)  # factor in torchvision's conversion to uint8


@device_function
def _grey(chunk, grey):
    """Write the grey levels, rounded down, of a chunk of pixels, float32 (3, _CHUNK), to ``grey``."""
    red, green, blue = chunk[0], chunk[1], chunk[2]
    for i in range(grey.size):
        grey[i] = np.floor(_RED * red[i] + _GREEN * green[i] + _BLUE * blue[i])


@device_function
def _blend(flat, factor, offset):
    for i in range(flat.size):
        flat[i] = np.floor(min(max(factor * flat[i] + offset, _ZERO), _TOP))


@device_function
def _saturate(chunk, factor, rest):
    red, green, blue = chunk[0], chunk[1], chunk[2]
    for i in range(red.size):
        r, g, b = red[i], green[i], blue[i]
        grey = rest * np.floor(_RED * r + _GREEN * g + _BLUE * b)
        red[i] = np.floor(min(max(factor * r + grey, _ZERO), _TOP))
        green[i] = np.floor(min(max(factor * g + grey, _ZERO), _TOP))
        blue[i] = np.floor(min(max(factor * b + grey, _ZERO), _TOP))


@device_function
def _turn_hue(chunk, turns):
    """Turn the hue of the chunk's pixels by ``turns`` sixths of a turn; value and saturation stay.

    With hue h in sixths of a turn, value v and chroma d, a channel is v − d · clamp(min(k, 4 − k), 0, 1), where k = (n
    + h) mod 6 and n is 5 for red, 3 for green, 1 for blue. This is Alvy Ray Smith's hexcone without its six cases.
    """
    red, green, blue = chunk[0], chunk[1], chunk[2]
    for i in range(red.size):
        r, g, b = red[i], green[i], blue[i]
        v = max(max(r, g), b)
        d = v - min(min(r, g), b)
        # ``base`` is the hue, in sixths of a turn, of the highest channel: 0 for red, 2 for green, 4 for blue.
        # ``across`` is the difference of the other two channels.
        across = r - g
        base = _FOUR
        across = b - r if v == g else across
        base = _TWO if v == g else base
        across = g - b if v == r else across
        base = _ZERO if v == r else base
        h = base + np.divide(across, max(d, _ONE)) + turns
        top = v * _TO_BYTE
        span = d * _TO_BYTE
        k = h + _f32(5)
        k -= _SIX * np.floor(k * _SIXTH)
        red[i] = np.floor(top - span * min(max(min(k, _FOUR - k), _ZERO), _ONE))
        k = h + _f32(3)
        k -= _SIX * np.floor(k * _SIXTH)
        green[i] = np.floor(top - span * min(max(min(k, _FOUR - k), _ZERO), _ONE))
        k = h + _f32(1)
        k -= _SIX * np.floor(k * _SIXTH)
        blue[i] = np.floor(top - span * min(max(min(k, _FOUR - k), _ZERO), _ONE))


@device_function
def _solarize(flat, threshold):
    for i in range(flat.size):
        x = flat[i]
        flat[i] = _TOP - x if x >= threshold else x


@device_function
def _posterize(flat, width):
    inverse = np.divide(_ONE, width)  # exact, because ``width``, the distance of kept levels, is a power of two
    for i in range(flat.size):
        flat[i] = width * np.floor(flat[i] * inverse)


@device_function
def _solarize_add(flat, added, threshold):
    for i in range(flat.size):
        x = flat[i]
        flat[i] = min(x + added, _TOP) if x < threshold else x


@device_function
def _permute(chunk, first, second):
    """Make channel ``first`` red, channel ``second`` green, and the remaining channel blue."""
    sources = chunk[first], chunk[second], chunk[3 - first - second]
    red, green, blue = chunk[0], chunk[1], chunk[2]
    for i in range(red.size):
        r, g, b = sources[0][i], sources[1][i], sources[2][i]
        red[i], green[i], blue[i] = r, g, b


@device_function
def _read(image, begin, chunk):
    """Fill the chunk with an image's pixels from ``begin`` on; beyond the image's end, the chunk keeps old values."""
    for c in range(3):
        row, source = chunk[c], image[c][begin : begin + _CHUNK]
        for i in range(source.size):
            row[i] = source[i]


@device_function
def _write(chunk, begin, image):
    for c in range(3):
        row, target = chunk[c], image[c][begin : begin + _CHUNK]
        for i in range(target.size):
            target[i] = _i32(row[i])


@device_function
def _sum(grey, count):
    total = _i32(0)
    for i in range(count):
        total = _i32(total + _i32(grey[i]))
    return total


@device_function
def _run_step(opcode, number, second, mean, chunk):
    """Run one pointwise step on a chunk of pixels, float32 (3, _CHUNK).

    ``number`` and ``second`` are the step's first two operands; ``mean`` is the whole image's mean grey level.
    """
    flat = chunk.reshape(3 * _CHUNK)
    factor = _f32(number)
    rest = _f32(1 - number)
    if opcode == SCALE:
        _blend(flat, factor, _ZERO)
    elif opcode == CONTRAST:
        _blend(flat, factor, _f32(mean) * rest)
    elif opcode == SATURATION:
        _saturate(chunk, factor, rest)
    elif opcode == HUE:
        _turn_hue(chunk, _f32(6 * number))
    elif opcode == SOLARIZE:
        _solarize(flat, factor)
    elif opcode == POSTERIZE:
        _posterize(flat, factor)
    elif opcode == SOLARIZE_ADD:
        _solarize_add(flat, factor, _f32(second))
    elif opcode == PERMUTE:
        _permute(chunk, int(number), int(second))


@kernel("(int64[:, ::1], float64[:, :, ::1], int64, int64, int64, uint8[:, :, ::1])")
def run_pointwise(opcode, operands, slot, begin, end, image):
    """Run pointwise steps, contrast included, on an image in place.

    A contrast step begins a new pass over the pixels, because it needs the mean grey level of the image after the steps
    before it.

    Args:
        opcode: int64 (images, steps); ``opcode[slot, begin:end]`` are the steps.
        operands: float64 (images, steps, 12), operands of the steps.
        slot: index of the image.
        begin, end: index of its first step, and of its last step + 1.
        image: uint8 (3, height, width), C-contiguous.
    """
    pixels = image.shape[1] * image.shape[2]
    planes = image.reshape(3, pixels)
    chunk = np.zeros((3, _CHUNK), np.float32)
    grey = np.empty(_CHUNK, np.float32)
    steps, numbers = opcode[slot], operands[slot]
    mean = _UNKNOWN
    while begin < end:
        stop = begin
        while stop < end and (steps[stop] != CONTRAST or (stop == begin and mean != _UNKNOWN)):
            stop += 1
        contrast_next = stop < end
        total = 0
        for start in range(0, pixels, _CHUNK):
            _read(planes, start, chunk)
            for k in range(begin, stop):
                _run_step(steps[k], numbers[k, 0], numbers[k, 1], mean, chunk)
            if contrast_next:
                _grey(chunk, grey)
                total += _sum(grey, min(_CHUNK, pixels - start))
            if stop > begin:
                _write(chunk, start, planes)
        mean = total / pixels
        begin = stop
