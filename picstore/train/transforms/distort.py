"""Perspective and elastic distortion of canvases, as in ``torchvision.transforms.v2``.

Neither is an affine map, so both are steps of the color program, which resample the finished canvas a second time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import (
    Range,
    checked_fill,
    checked_numbers,
    checked_probability,
    checked_sampling,
    is_number,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.blur_noise_erasing import pixel_keys
from picstore.train.transforms.color_program import ColorProgram, ColorTransform

_MAX_SIGMA = 127.0  # maximum deviation of a blur in pixels, which limits the memory that the blur takes


class RandomPerspective(ColorTransform):
    """Move the image's four corners inwards by random distances, with probability ``p``. Uses 9 random numbers.

    Args:
        distortion_scale: maximum distance as a fraction of half the width and height, 0 to 1.
        p: probability of moving the corners.
        interpolation: ``"nearest"``, ``"bilinear"``, or ``"bicubic"`` as Pillow computes it.
        fill: color outside of the image, grey level 0 to 255 or (red, green, blue), blended with the image's border as
            in torchvision; None for black without blending.
    """

    moves_pixels = True

    def __init__(
        self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = "bilinear", fill: Any = 0
    ) -> None:
        name = "RandomPerspective"
        if not is_number(distortion_scale) or not 0 <= distortion_scale <= 1:
            raise UsageError(f"{name}: distortion_scale is {distortion_scale}; give a number of 0 to 1")
        self._scale, self._p = float(distortion_scale), checked_probability(p, name)
        self._sampling = (checked_sampling(interpolation, name), *sampling_fill(fill, name))

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        numbers = random.uniform(9)
        most = (self._scale * (sizes // 2)).astype(np.int64) + 1
        inwards = np.floor(numbers[:, 1:].reshape(-1, 4, 2) * most[:, None])  # distances of 4 corners along x and y
        left_top, right_bottom = inwards, sizes[:, None] - most[:, None] + inwards
        low, high = left_top.transpose(1, 2, 0), right_bottom.transpose(1, 2, 0)
        corners = np.array([[low[0, 0], low[0, 1]], [high[1, 0], low[1, 1]], high[2], [low[3, 0], high[3, 1]]])
        # If corners coincide, divisions by 0 give a map that is not finite, for which all output pixels are fill.
        with np.errstate(all="ignore"):
            coefficients = _perspective_maps(corners, sizes.T - 1)
        flat = (sizes < 2).any(axis=1)
        opcode = np.where((numbers[:, 0] < self._p) & ~flat, opcodes.WARP, opcodes.NOTHING)
        return ColorProgram.from_step(opcode, [*coefficients, *self._sampling], count=len(sizes))


class ElasticTransform(ColorTransform):
    """Displace each pixel by blurred uniform noise. Uses 1 random number, the seed of an image's noise.

    Args:
        alpha: range of the displacements before the blur, −alpha / 2 to alpha / 2 pixels; one number, or (x, y).
        sigma: standard deviation of the blur in pixels, at most 127, 0 for no blur; one number, or (across, down).
        interpolation: ``"nearest"``, ``"bilinear"``, or ``"bicubic"`` as Pillow computes it.
        fill: see :class:`RandomPerspective`.
    """

    moves_pixels = True

    def __init__(self, alpha: Range = 50.0, sigma: Range = 5.0, interpolation: Any = "bilinear", fill: Any = 0) -> None:
        name = "ElasticTransform"
        alphas = checked_numbers([alpha] if is_number(alpha) else alpha, f"{name}: alpha", (1, 2))
        sigmas = checked_numbers([sigma] if is_number(sigma) else sigma, f"{name}: sigma", (1, 2))
        if not all(0 <= each <= _MAX_SIGMA for each in sigmas) or (max(sigmas) > 0 and min(sigmas) == 0):
            raise UsageError(f"{name}: sigma is {sigma}; give deviations of at most {_MAX_SIGMA}, above 0 or all 0")
        operands = [alphas[0] / 2, alphas[-1] / 2, sigmas[0], sigmas[-1], *[0.0] * (opcodes.SAMPLING - 4)]
        self._operands = [*operands, checked_sampling(interpolation, name), *sampling_fill(fill, name)]

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        key = pixel_keys(random.uniform(1)[:, 0])
        return ColorProgram.from_step(opcodes.ELASTIC, self._operands, key=key, count=len(sizes))


def sampling_fill(fill: Any, transform: str) -> tuple[float, float, float]:
    """Return the operands ``opcodes.FILL`` (red, green, blue) for ``fill``: None, a level 0 to 255, or three levels."""
    if fill is None:
        return opcodes.NO_FILL, opcodes.NO_FILL, opcodes.NO_FILL
    red, green, blue = checked_fill(fill, transform)
    return float(red), float(green), float(blue)


def _perspective_maps(corners: F64, extent: I64) -> list[F64]:
    """Return the coefficients of n perspective maps, each from four points to the corners of a rectangle.

    A map is the inverse of that from the unit square to the points (Heckbert, "Fundamentals of texture mapping and
    image warping", 1989), multiplied by the rectangle's extent.

    Args:
        corners: float64 (4, 2, n), x and y of the points: left top, right top, right bottom, left bottom.
        extent: int64 (2, n), x and y of the rectangle's right bottom corner; the left top corner is (0, 0).

    Returns:
        Eight arrays (n,), the operands a to h of ``opcodes.WARP``.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    right, below, rest = (x1 - x2, y1 - y2), (x3 - x2, y3 - y2), (x0 - x1 + x2 - x3, y0 - y1 + y2 - y3)
    area = right[0] * below[1] - below[0] * right[1]
    g, h = (rest[0] * below[1] - below[0] * rest[1]) / area, (right[0] * rest[1] - rest[0] * right[1]) / area
    a, b, c = x1 - x0 + g * x1, x3 - x0 + h * x3, x0
    d, e, f = y1 - y0 + g * y1, y3 - y0 + h * y3, y0
    unit = a * e - b * d
    width, height = extent
    return [
        width * (e - f * h) / unit,
        width * (c * h - b) / unit,
        width * (b * f - c * e) / unit,
        height * (f * g - d) / unit,
        height * (a - c * g) / unit,
        height * (c * d - a * f) / unit,
        (d * h - e * g) / unit,
        (b * g - a * h) / unit,
    ]
