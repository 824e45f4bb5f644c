"""Gaussian noise on an image of bytes in place, in numba."""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, kernel
from picstore.train.cpu.normals import fill_normals

_CHUNK = 1024  # values; with the scratch of the normals 16 KB

_f32, _i32, _u8 = np.float32, np.int32, np.uint8
_ZERO, _TOP = np.float32(0), np.float32(255)


@device_function
def _add(row, normals, mean, deviation, clip):  # type: ignore[no-untyped-def]
    for i in range(row.size):
        level = _f32(row[i]) + np.trunc(mean + deviation * normals[i])
        level = min(max(level, _ZERO), _TOP) if clip else level
        row[i] = _u8(_i32(level))  # what is not clipped wraps around


@kernel
def add_noise(value, key, slot, step, image):  # type: ignore[no-untyped-def]
    """Add normal noise, truncated to whole levels: for value i of channel c normal number i of plane c.

    Args:
        value: float64 (n, k, 8), of which ``value[slot, step]`` has mean and deviation in grey levels, and 0 where
            values shall wrap around instead of being clipped.
        key: uint64 (n, k).
        slot, step: int64.
        image: uint8 (3, height, width), C-contiguous.
    """
    numbers = value[slot, step]
    pixels = image.shape[1] * image.shape[2]
    planes = image.reshape(3, pixels)
    pairs = (pixels + 1) // 2
    half = _CHUNK // 2
    scratch, choice = np.empty((3, half), np.float32), np.empty(half, np.int32)
    normals = np.empty(_CHUNK, np.float32)
    for c in range(3):
        for begin in range(0, pixels, _CHUNK):
            fill_normals(key[slot, step], c * pairs + begin // 2, scratch, choice, normals)
            row = planes[c][begin : begin + _CHUNK]
            _add(row, normals, _f32(numbers[0]), _f32(numbers[1]), numbers[2] != 0)
