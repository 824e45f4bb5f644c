"""Transforms that turn, scale, shear and shift the canvas about a point.

Names, parameters and the order of the steps are those of ``torchvision.transforms.v2``, with two differences: the
interpolation is always bilinear, where torchvision's default is nearest; and a ``scale`` below 1 is antialiased, as
any minification is, where torchvision never does it. An edge of the old canvas is blended with the fill over one pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.crops import checked_fill
from picstore.train.transforms.geometry import Draws, Fill, Geometry

_BILINEAR = ("bilinear", 2)  # torchvision's name, and Pillow's number


class RandomRotation:
    """Rotate by an angle uniform in ``degrees``, counter-clockwise. Takes 1 draw.

    Args:
        degrees: least and greatest, or d for (−d, d).
        interpolation: ``"bilinear"``, the default and all there is; torchvision's default is nearest.
        expand: make the canvas as large as the rotated image needs; then the images have different sizes.
        center: (x, y) in pixels of the canvas; None is its middle.
        fill: colour of what is uncovered, grey level 0 to 255 or (red, green, blue).

    Raises:
        UsageError: an argument is none of these.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Any = "bilinear",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Any = 0,
    ) -> None:
        name = "RandomRotation"
        self._degrees = _angles(degrees, f"{name}: degrees", (2,))
        _check_interpolation(interpolation, name)
        self.varies_size = bool(expand)
        self._center = _center(center, name)
        self.fill: Fill = checked_fill(fill, name)

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        angle = -_uniform(draws.unit(1)[:, 0], self._degrees)
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
        return geometry.filled(self.fill).warp(np.concatenate([linear, shift[:, :, None]], axis=2), size)


class RandomAffine:
    """Rotate, shift, scale and shear at random, about a centre. Takes 6 draws, whatever is asked for.

    These are the angle, the shifts in x and y, the scale, the shears in x and y, each uniform in its range. Positive
    angles turn clockwise, as torchvision's do here, unlike in RandomRotation. A shift is of whole pixels. A scale below
    1 is antialiased, other than torchvision's.

    Args:
        degrees: least and greatest, or d for (−d, d); 0 for no rotation.
        translate: greatest shift in x and y, as parts of width and height, 0 to 1.
        scale: least and greatest factor, above 0.
        shear: degrees, above −90 and below 90: d for (−d, d) along x, or least and greatest along x, or these and then
            least and greatest along y.
        interpolation: ``"bilinear"``, the default and all there is; torchvision's default is nearest.
        fill: colour of what is uncovered, grey level 0 to 255 or (red, green, blue).
        center: (x, y) in pixels of the canvas; None is its middle.

    Raises:
        UsageError: an argument is none of these.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Any = "bilinear",
        fill: Any = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        self._degrees = _angles(degrees, f"{name}: degrees", (2,))
        self._translate = _numbers((0.0, 0.0) if translate is None else translate, f"{name}: translate", (2,))
        if not all(0 <= part <= 1 for part in self._translate):
            raise UsageError(f"{name}: translate is {translate}; give parts of width and height, 0 to 1")
        self._scale = _numbers((1.0, 1.0) if scale is None else scale, f"{name}: scale", (2,))
        if not 0 < self._scale[0] <= self._scale[1]:
            raise UsageError(f"{name}: scale is {scale}; give two factors above zero, the lesser first")
        shears = _angles(0.0 if shear is None else shear, f"{name}: shear", (2, 4))
        if not all(-90 < angle < 90 for angle in shears):
            raise UsageError(f"{name}: shear is {shear}; give angles above -90 and below 90 degrees")
        self._shear_x, self._shear_y = shears[:2], shears[2:] or (0.0, 0.0)
        _check_interpolation(interpolation, name)
        self.fill: Fill = checked_fill(fill, name)
        self._center = _center(center, name)

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        numbers = draws.unit(6)
        angle = _uniform(numbers[:, 0], self._degrees)
        most = geometry.size * self._translate
        moved = np.rint((2 * numbers[:, 1:3] - 1) * most)
        scale = _uniform(numbers[:, 3], self._scale)
        shear_x, shear_y = _uniform(numbers[:, 4], self._shear_x), _uniform(numbers[:, 5], self._shear_y)
        linear = _linear_maps(angle, scale, shear_x, shear_y)
        center = geometry.size / 2 if self._center is None else np.broadcast_to(self._center, moved.shape)
        shift = center - _times(linear, center + moved)
        return geometry.filled(self.fill).warp(np.concatenate([linear, shift[:, :, None]], axis=2), geometry.size)


def _linear_maps(angle: F64, scale: F64, shear_x: F64, shear_y: F64) -> F64:
    """From the new canvas back to the old: float64 (n, 2, 2); angles in degrees, clockwise.

    The way there is rotation × scale × shear along y × shear along x, each shear [1, −tan] or its transpose; of
    determinant scale², so its inverse needs no division but by the scale.
    """
    (sine, cosine), (sine_less, cosine_less) = _sine_cosine(angle), _sine_cosine(angle - shear_y)
    (sine_x, cosine_x), (_, cosine_y) = _sine_cosine(shear_x), _sine_cosine(shear_y)
    slope = sine_x / cosine_x
    a, c = cosine_less / cosine_y, sine_less / cosine_y
    b, d = -a * slope - sine, cosine - c * slope
    return np.stack([np.stack([d, -b], axis=1), np.stack([-c, a], axis=1)], axis=1) / scale[:, None, None]


def _sine_cosine(degrees: F64) -> tuple[F64, F64]:
    """Both to 2**-52, and exact at multiples of 90.

    By their series and not by NumPy's functions, whose last bit depends on the processor: a picture must not.
    """
    quarters = np.rint(degrees / 90)
    x = (degrees - 90 * quarters) * (math.pi / 180)
    sine, cosine = np.ones_like(x), np.ones_like(x)
    for k in range(17, 1, -2):  # from the last term on, as far as one is seen up to 45 degrees
        sine = 1 - x * x / (k * (k - 1)) * sine
        cosine = 1 - x * x / ((k - 1) * (k - 2)) * cosine
    sine *= x
    turned = (quarters % 4).astype(np.int64)
    return np.choose(turned, [sine, cosine, -sine, -cosine]), np.choose(turned, [cosine, -sine, -cosine, sine])


def _expanded(linear: F64, shift: F64, size: I64) -> I64:
    """The whole pixels that the rotated canvases need: int64 (n, 2). A ten-thousandth of a pixel is none."""
    half = size / 2
    offset = shift + _times(linear, half) - half  # of the middle
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


def _numbers(values: Any, name: str, counts: tuple[int, ...]) -> tuple[float, ...]:
    """So many finite numbers, checked."""
    known = isinstance(values, (tuple, list, np.ndarray)) and len(values) in counts
    if not known or not all(isinstance(v, (int, float, np.number)) and math.isfinite(v) for v in values):
        raise UsageError(f"{name} is {values}; give {' or '.join(map(str, counts))} numbers")
    return tuple(float(v) for v in values)


def _angles(degrees: Any, name: str, counts: tuple[int, ...]) -> tuple[float, ...]:
    """Pairs of least and greatest, of one number d the pair (−d, d)."""
    if isinstance(degrees, (int, float, np.number)):
        degrees = (-degrees, degrees)
    angles = _numbers(degrees, name, counts)
    if any(low > high for low, high in zip(angles[::2], angles[1::2], strict=True)):
        raise UsageError(f"{name} is {degrees}; give a number that is not negative, or the lesser first")
    return angles


def _center(center: Sequence[float] | None, name: str) -> tuple[float, ...] | None:
    return None if center is None else _numbers(center, f"{name}: center", (2,))


def _check_interpolation(interpolation: Any, name: str) -> None:
    if getattr(interpolation, "value", interpolation) not in _BILINEAR:
        raise UsageError(f"{name}: interpolation is {interpolation}; picstore's is 'bilinear' always, so leave it out")
