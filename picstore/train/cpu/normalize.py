"""From grey levels to the batch: normalising and converting, in numba.

Values are what torch computes in float32, ``(level · (1 / 255) − mean) / std``, rounded once to the batch's type. The
arithmetic makes vector instructions and takes 17 µs an image of 224 × 224; a table of 256 values a channel took 50. All
values are made as bit patterns in uint32: numba knows neither float16 nor bfloat16.
"""

from __future__ import annotations

import numpy as np

from picstore.arrays import F32, Array
from picstore.kernels.jit import device_function, kernel
from picstore.kernels.strided import put_bytes, put_patterns
from picstore.train.transforms.opcodes import BRAIN, BYTES, HALF, SINGLE

_f32, _i32, _u32 = np.float32, np.int32, np.uint32
_PER_LEVEL = np.float32(1 / 255)
_S13, _S16 = np.uint32(13), np.uint32(16)
_SIGN, _MAGNITUDE = np.uint32(0x8000), np.uint32(0x7FFFFFFF)
_BELOW_HALF = np.uint32(0x7FFF)  # of what bfloat16 drops
_1, _ROUND13, _REBIAS = np.uint32(1), np.uint32(0xFFF), np.uint32(112 << 23)
_LEAST_NORMAL, _TOO_LARGE, _INFINITY = np.uint32(113 << 23), np.uint32(143 << 23), np.uint32(0x7C00)
_TO_SUBNORMAL = np.float32(2.0**24)


@kernel
def _pack(line, kind, patterns):  # type: ignore[no-untyped-def]
    """float32 values to the bit patterns of a kind of floats, to the nearest, ties to even; may be in place."""
    bits = line.view(np.uint32)
    for i in range(line.size):
        b = bits[i]
        magnitude = b & _MAGNITUDE
        sign = (b >> _S16) & _SIGN
        if kind == HALF:
            half = _u32(magnitude + _ROUND13 + ((magnitude >> _S13) & _1) - _REBIAS) >> _S13
            half = _u32(_i32(np.rint(abs(line[i]) * _TO_SUBNORMAL))) if magnitude < _LEAST_NORMAL else half
            half = _INFINITY if magnitude >= _TOO_LARGE else half
            b = half | sign
        elif kind == BRAIN:
            b = _u32(b + _BELOW_HALF + ((b >> _S16) & _1)) >> _S16
        patterns[i] = b


@device_function
def _normalise(levels, mean, deviation, line):  # type: ignore[no-untyped-def]
    for i in range(line.size):
        line[i] = np.divide(_f32(levels[i]) * _PER_LEVEL - mean, deviation)


def patterns_of(values: F32, kind: int) -> Array:
    """Bit patterns of float32 (n,); uint8 (n,) for bytes, uint32 otherwise. Bytes drop the fraction."""
    if kind == BYTES:
        return values.astype(np.uint8)
    patterns = values.view(np.uint32)
    if kind != SINGLE:
        _pack(values, kind, patterns)
    return patterns


@kernel
def convert(image, value, slot, step, kind, place):  # type: ignore[no-untyped-def]
    """An image of bytes into a batch.

    Args:
        image: uint8 (3, height, width), C-contiguous.
        value: float64 (n, k, 8), of which ``value[slot, step]`` holds three means and three deviations.
        slot, step: int64.
        kind: of the output.
        place: that of the output (3, height, width): bytes, or bit patterns of 2 or 4 bytes.
    """
    height, width = image.shape[1:]
    numbers = value[slot, step]
    line = np.empty(width, np.float32)
    patterns = line.view(np.uint32) if kind == SINGLE else np.empty(width, np.uint32)
    words = patterns.ctypes.data
    first, planes, rows = place[0], place[1], place[2]
    for y in range(height):
        for c in range(3):
            source = image[c, y]
            if kind == BYTES:
                put_bytes(source.ctypes.data, width, first + c * planes + y * rows, place[3])
                continue
            _normalise(source, _f32(numbers[c]), _f32(numbers[3 + c]), line)
            if kind != SINGLE:
                _pack(line, kind, patterns)
            put_patterns(words, width, first + c * planes + y * rows, place[3], 4 if kind == SINGLE else 2)
