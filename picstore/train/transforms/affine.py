"""Rotation, scaling, shear and translation of images, as in ``torchvision.transforms.v2``.

Unlike in torchvision, bilinear and wider interpolations antialias a ``scale`` below 1, and blend an edge of the old
canvas with the fill over one pixel. A list of transforms is one resampling, by the widest interpolation in the list:
after a bilinear ``Resize`` a rotation is bilinear too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.arguments import (
    Fill,
    Interpolation,
    checked_angles,
    checked_fill,
    checked_interpolation,
    checked_numbers,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.geometry import Geometry


class RandomRotation(Value):
    """Rotate counter-clockwise by a uniformly drawn angle. Uses 1 random number, or 2 if an interpolation is drawn.

    Args:
        degrees: minimum and maximum angle; a number d stands for (−d, d).
        interpolation: as for ``Resize``.
        expand: whether to enlarge the canvas until the rotated image fits; sizes of images then differ.
        center: point that stays in place, (x, y) in pixels of the canvas; None for the canvas's center.
        fill: color outside of the image: grey level 0 to 255, or (red, green, blue).
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Interpolation = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Any = 0,
    ) -> None:
        name = "RandomRotation"
        self._degrees = checked_angles(degrees, f"{name}: degrees", (2,))
        self._interpolation = checked_interpolation(interpolation, name)
        self.varies_size = bool(expand)
        self._center = None if center is None else checked_numbers(center, f"{name}: center", (2,))
        self.fill: Fill = checked_fill(fill, name)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        angle = -_uniform(random.uniform(1)[:, 0], self._degrees)
        zero = np.zeros_like(angle)
        linear = _linear_maps(angle, zero + 1, zero, zero)
        middle = geometry.size / 2
        center = middle if self._center is None else np.broadcast_to(self._center, middle.shape)
        shift = center - _times(linear, center)
        size = geometry.size
        if self.varies_size:
            size = _expanded(linear, shift, size)
            if self._center is None:
                right_angle = (linear == 0).any(axis=(1, 2))[:, None]
                size = np.where(right_angle, _times(np.abs(linear), 2 * middle), size).astype(np.int64)
        shift = shift + _times(linear, middle - size / 2)
        geometry = geometry.with_fill(self.fill).resample_by(random.choice(self._interpolation))
        return geometry.warp(np.concatenate([linear, shift[:, :, None]], axis=2), size)


class RandomAffine(Value):
    """Rotate, translate, scale and shear about a center. Uses 6 random numbers, or 7 if an interpolation is drawn.

    Angle, scale, and translation and shear in x and in y are uniform in their ranges. Positive angles turn clockwise,
    unlike those of RandomRotation; both are as in torchvision. Translations are whole pixels.

    Args:
        degrees: minimum and maximum angle; a number d stands for (−d, d).
        translate: maximum translation in x and y, as fractions of width and height, 0 to 1.
        scale: minimum and maximum factor, above 0.
        shear: minimum and maximum angle along x, or along x and then along y, in degrees above −90 and below 90; a
            number d stands for (−d, d) along x.
        interpolation: as for ``Resize``.
        fill: color outside of the image: grey level 0 to 255, or (red, green, blue).
        center: point about which the image turns, (x, y) in pixels of the canvas; None for the canvas's center.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Interpolation = "nearest",
        fill: Any = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        self._degrees = checked_angles(degrees, f"{name}: degrees", (2,))
        self._translate = checked_numbers((0.0, 0.0) if translate is None else translate, f"{name}: translate", (2,))
        if not all(0 <= fraction <= 1 for fraction in self._translate):
            raise UsageError(f"{name}: translate is {translate}; give fractions of width and height, 0 to 1")
        self._scale = checked_numbers((1.0, 1.0) if scale is None else scale, f"{name}: scale", (2,))
        if not 0 < self._scale[0] <= self._scale[1]:
            raise UsageError(f"{name}: scale is {scale}; give two factors above zero, the lesser first")
        shears = checked_angles(0.0 if shear is None else shear, f"{name}: shear", (2, 4))
        if not all(-90 < angle < 90 for angle in shears):
            raise UsageError(f"{name}: shear is {shear}; give angles above -90 and below 90 degrees")
        self._shear_x, self._shear_y = shears[:2], shears[2:] or (0.0, 0.0)
        self._interpolation = checked_interpolation(interpolation, name)
        self.fill: Fill = checked_fill(fill, name)
        self._center = None if center is None else checked_numbers(center, f"{name}: center", (2,))

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        numbers = random.uniform(6)
        angle = _uniform(numbers[:, 0], self._degrees)
        most = geometry.size * self._translate
        moved = np.rint((2 * numbers[:, 1:3] - 1) * most)
        scale = _uniform(numbers[:, 3], self._scale)
        shear_x, shear_y = _uniform(numbers[:, 4], self._shear_x), _uniform(numbers[:, 5], self._shear_y)
        linear = _linear_maps(angle, scale, shear_x, shear_y)
        center = geometry.size / 2 if self._center is None else np.broadcast_to(self._center, moved.shape)
        shift = center - _times(linear, center + moved)
        geometry = geometry.with_fill(self.fill).resample_by(random.choice(self._interpolation))
        return geometry.warp(np.concatenate([linear, shift[:, :, None]], axis=2), geometry.size)


def _linear_maps(angle: F64, scale: F64, shear_x: F64, shear_y: F64) -> F64:
    """Return linear maps from the new canvas to the old, float64 (n, 2, 2); angles are in degrees, clockwise.

    A map is the inverse of rotation × scale × shear along y × shear along x.
    """
    (sine, cosine), (sine_less, cosine_less) = sine_cosine(angle), sine_cosine(angle - shear_y)
    (sine_x, cosine_x), (_, cosine_y) = sine_cosine(shear_x), sine_cosine(shear_y)
    slope = sine_x / cosine_x
    a, c = cosine_less / cosine_y, sine_less / cosine_y
    b, d = -a * slope - sine, cosine - c * slope
    return np.stack([np.stack([d, -b], axis=1), np.stack([-c, a], axis=1)], axis=1) / scale[:, None, None]


def sine_cosine(degrees: F64) -> tuple[F64, F64]:
    """Return sine and cosine of angles in degrees, within 2**-52, and exact at multiples of 90 degrees.

    They are computed as series, because the last bit of NumPy's sine and cosine depends on the processor.
    """
    quarters = np.rint(degrees / 90)
    x = (degrees - 90 * quarters) * (math.pi / 180)
    sine, cosine = np.ones_like(x), np.ones_like(x)
    # Horner's scheme from the term x**17 down; for angles up to 45 degrees, later terms are below float64's precision.
    for k in range(17, 1, -2):
        sine = 1 - x * x / (k * (k - 1)) * sine
        cosine = 1 - x * x / ((k - 1) * (k - 2)) * cosine
    sine *= x
    turned = (quarters % 4).astype(np.int64)
    return np.choose(turned, [sine, cosine, -sine, -cosine]), np.choose(turned, [cosine, -sine, -cosine, sine])


def _expanded(linear: F64, shift: F64, size: I64) -> I64:
    """Return the sizes, int64 (n, 2), of canvases into which canvases of ``size`` fit after the map ``linear``.

    As in torchvision, corners are truncated to 1e-4 pixels and then rounded outwards; rounding errors add no pixel.
    """
    half = size / 2
    offset = shift + _times(linear, half) - half  # vector from the canvas's center to the center's mapped position
    extent = _times(np.abs(linear), half)
    high = np.ceil(np.trunc((offset + extent + half) * 1e4) / 1e4)
    low = np.floor(np.trunc((offset - extent + half) * 1e4) / 1e4)
    expanded: I64 = np.maximum(high - low, 1).astype(np.int64)
    return expanded


def _times(linear: F64, vectors: F64) -> F64:
    product: F64 = (linear * vectors[:, None, :]).sum(axis=2)
    return product


def _uniform(numbers: F64, bounds: Sequence[float]) -> F64:
    return bounds[0] + (bounds[1] - bounds[0]) * numbers
