"""Kernels that draw the crops and flips of a batch: two calls without Python's lock in place of 140 of NumPy's.

They make what ``RandomResizedCrop`` and flips make of ``Geometry.identity``, to the bit: the same random numbers, and
additions, multiplications, divisions and square roots of float64 in the same order. The exponential is NumPy's, between
the two, as its last bits differ from other libraries'.
"""

from __future__ import annotations

import numpy as np

from picstore import rng
from picstore.kernels.jit import device_function, kernel
from picstore.train.transforms.crops import TRIES

_u64 = np.uint64
_GOLDEN, _M1, _M2 = np.uint64(rng.GOLDEN), np.uint64(rng.MIX1), np.uint64(rng.MIX2)
_S11, _S27, _S30, _S31 = (np.uint64(shift) for shift in (11, 27, 30, 31))
_UNIT = 2.0**-53
_TRIES = TRIES


@device_function
def _mix(z):
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@kernel(
    "void(uint64, int64[::1], int64[::1], float64, float64, uint64[::1], float64[:, ::1], float64[:, ::1])",
)
def draw_numbers(key, ids, views, low, span, keys, numbers, exponents):
    """Draw the numbers of ``BatchRandom.uniform`` for each image.

    Args:
        key: of seed and epoch.
        ids: of the records, int64 (n,).
        views: int64 (n,).
        low: least logarithm of a ratio, and with ``span`` the greatest.
        keys: uint64 (n,), takes each image's key.
        numbers: float64 (n, k), takes the first k numbers, of which the second ten are for ratios.
        exponents: float64 (n, 10), takes the logarithms of the ratios.
    """
    for i in range(ids.size):
        own = _mix((key + _GOLDEN) ^ _u64(ids[i]))
        if views[i]:
            own = _mix((own + _GOLDEN) ^ _u64(views[i]))
        keys[i] = own
        for k in range(numbers.shape[1]):
            numbers[i, k] = np.float64(_mix(own + _u64(k + 1) * _GOLDEN) >> _S11) * _UNIT
        for k in range(_TRIES):
            exponents[i, k] = low + span * numbers[i, _TRIES + k]


@kernel(
    "boolean(float64[:, ::1], float64[:, ::1], int64[:, ::1], float64[::1], float64[:, ::1], float64[:, :, ::1], "
    "int64[:, ::1], float64[:, ::1])"
)
def place_crops(numbers, ratios, sizes, bounds, flips, frame, clip, box):
    """Choose and place the box of each image, and mirror it.

    Args:
        numbers: of :func:`draw_numbers`; the numbers of the crop, then one for each flip.
        ratios: float64 (n, 10).
        sizes: int64 (n, 2), width and height of the images.
        bounds: float64 (4,): least fraction of the area, and how much more it may be; least and greatest ratio.
        flips: float64 (k, 3): probability; 1 where it mirrors left to right, and top to bottom.
        frame, clip, box: take what ``Geometry`` has of these names.

    Returns:
        Whether all boxes lie within their images.
    """
    for i in range(sizes.shape[0]):
        width, height = sizes[i]
        if width < 1 or height < 1:
            return False
        area = np.float64(width * height)
        w, h, found = 0.0, 0.0, False
        for k in range(_TRIES):
            wanted = area * (bounds[0] + bounds[1] * numbers[i, k])
            w, h = np.rint(np.sqrt(wanted * ratios[i, k])), np.rint(np.sqrt(np.divide(wanted, ratios[i, k])))
            found = 0 < w <= width and 0 < h <= height
            if found:
                break
        if not found:
            ratio = width / height
            w = max(np.rint(height * bounds[3]) if ratio > bounds[3] else np.float64(width), 1.0)
            h = max(np.rint(width / bounds[2]) if ratio < bounds[2] else np.float64(height), 1.0)
        wide, high = np.int64(w), np.int64(h)
        x, y = (width - wide) // 2, (height - high) // 2
        if found:
            x = np.int64(np.floor(numbers[i, 2 * _TRIES] * (width - wide + 1)))
            y = np.int64(np.floor(numbers[i, 2 * _TRIES + 1] * (height - high + 1)))
        if x < 0 or y < 0 or x + wide > width or y + high > height:
            return False
        clip[i, 0], clip[i, 1], clip[i, 2], clip[i, 3] = x, y, x + wide, y + high
        box[i, 0], box[i, 1], box[i, 2], box[i, 3] = x, y, wide, high
        mirrored_x = mirrored_y = False
        for k in range(flips.shape[0]):
            if numbers[i, 2 * _TRIES + 2 + k] < flips[k, 0]:
                mirrored_x ^= flips[k, 1] > 0
                mirrored_y ^= flips[k, 2] > 0
        frame[i] = 0.0
        frame[i, 0, 0], frame[i, 0, 2] = (-wide, x + wide) if mirrored_x else (wide, x)
        frame[i, 1, 1], frame[i, 1, 2] = (-high, y + high) if mirrored_y else (high, y)
    return True
