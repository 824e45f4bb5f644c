"""Resizes, zooms and crops of detection, with names, parameters and rounding of ``torchvision.transforms.v2``.

Sizes of their outputs differ between images; boxes, outlines and masks follow as with any transform of geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.arrays import F64
from picstore.errors import UsageError
from picstore.train.transforms.arguments import (
    Fill,
    Interpolation,
    checked_fill,
    checked_interpolation,
    checked_probability,
    checked_range,
    checked_size,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.crops import proportional_size
from picstore.train.transforms.geometry import Geometry


class _RandomScale:
    """A resize of both sides by one factor, the same for an image in any batch."""

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, interpolation: Interpolation, antialias: bool | None) -> None:
        self._interpolation = checked_interpolation(interpolation, type(self).__name__)
        self._antialias = bool(antialias)

    def _scaled(self, geometry: Geometry, factor: F64, random: BatchRandom) -> Geometry:
        """Resize by factors (n,); sides are rounded down, to a pixel at least."""
        size = np.maximum((geometry.size * factor[:, None]).astype(np.int64), 1)
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)


class ScaleJitter(_RandomScale):
    """Resize to a random multiple of the largest size that fits into ``target_size`` ("Simple Copy-Paste", CVPR 2021).

    Uses 1 random number, and as ``Resize``.

    Args:
        target_size: (width, height) in pixels; torchvision has this one width first.
        scale_range: least and greatest multiple, above 0.
        interpolation, antialias: as for ``Resize``.

    Raises:
        UsageError: an argument has another value.
    """

    def __init__(
        self,
        target_size: tuple[int, int],
        scale_range: tuple[float, float] = (0.1, 2.0),
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self._target = checked_size(target_size, "ScaleJitter", "target_size")
        self._low, self._high = checked_range(scale_range, "ScaleJitter: scale_range")
        if self._low <= 0:
            raise UsageError(f"ScaleJitter: scale_range is {scale_range}; give two numbers above 0, the lesser first")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        scale = self._low + random.uniform(1)[:, 0] * (self._high - self._low)
        fitting: F64 = (np.array(self._target) / geometry.size).min(axis=1)
        return self._scaled(geometry, fitting * scale, random)


class RandomShortestSize(_RandomScale):
    """Resize the shorter side to one of ``min_size``, but the longer one to at most ``max_size``, as DETR does.

    Uses 1 random number, and as ``Resize``. As torchvision's, a side may be a pixel less by rounding.

    Args:
        min_size: pixels, or a list of which each image gets one.
        max_size: pixels; None for no limit.
        interpolation, antialias: as for ``Resize``.

    Raises:
        UsageError: an argument has another value.
    """

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        name = "RandomShortestSize"
        sizes = list(min_size) if isinstance(min_size, (tuple, list)) else [min_size]
        if not sizes:
            raise UsageError(f"{name}: min_size is {min_size}; give at least one size")
        self._sizes = np.array([checked_size(size, name, "min_size")[0] for size in sizes])
        self._longest = None if max_size is None else checked_size(max_size, name, "max_size")[0]

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        chosen = self._sizes[(random.uniform(1)[:, 0] * len(self._sizes)).astype(np.int64)]
        factor: F64 = chosen / geometry.size.min(axis=1)
        if self._longest is not None:
            factor = np.minimum(factor, self._longest / geometry.size.max(axis=1))
        return self._scaled(geometry, factor, random)


class RandomResize(_RandomScale):
    """Resize the shorter side to a random size from ``min_size`` to below ``max_size``, at the same aspect ratio.

    Uses 1 random number, and as ``Resize``.

    Args:
        min_size, max_size: pixels.
        interpolation, antialias: as for ``Resize``.

    Raises:
        UsageError: an argument has another value, or ``max_size`` is not above ``min_size``.
    """

    def __init__(
        self, min_size: int, max_size: int, interpolation: Interpolation = "bilinear", antialias: bool | None = True
    ) -> None:
        super().__init__(interpolation, antialias)
        name = "RandomResize"
        self._least, self._end = (checked_size(size, name)[0] for size in (min_size, max_size))
        if self._least >= self._end:
            raise UsageError(f"{name}: min_size is {min_size} and max_size {max_size}; give a max_size above min_size")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        shorter = self._least + (random.uniform(1) * (self._end - self._least)).astype(np.int64)
        size = proportional_size(geometry.size, shorter, None)
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)


class RandomZoomOut:
    """Place the image on a larger canvas, with probability ``p`` ("SSD", ECCV 2016). Uses 4 random numbers.

    These are the chance, the factor by which both sides grow, and the image's position, x and y.

    Args:
        fill: color of the canvas: grey level 0 to 255, or (red, green, blue).
        side_range: least and greatest factor, at least 1.
        p: probability.

    Raises:
        UsageError: an argument has another value.
    """

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, fill: Any = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5) -> None:
        name = "RandomZoomOut"
        self.fill: Fill = checked_fill(fill, name)
        self._low, self._high = checked_range(side_range, f"{name}: side_range")
        if self._low < 1:
            raise UsageError(f"{name}: side_range is {side_range}; give two numbers of at least 1, the lesser first")
        self._p = checked_probability(p, name)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        numbers = random.uniform(4)
        factor = np.where(numbers[:, :1] < self._p, self._low + numbers[:, 1:2] * (self._high - self._low), 1.0)
        size = (geometry.size * factor).astype(np.int64)
        corner = ((size - geometry.size) * numbers[:, 2:]).astype(np.int64)
        return geometry.with_fill(self.fill).crop(-corner, size)


class RandomSizeCrop:
    """Crop a box whose sides are random numbers of pixels, as DETR does (Carion et al., ECCV 2020).

    Not torchvision's. Uses 4 random numbers: width, height, x, y.

    Args:
        min_size, max_size: least and greatest side; the sides of the image limit both.

    Raises:
        UsageError: a size is not in 1 … 32768, or ``max_size`` is below ``min_size``.
    """

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, min_size: int, max_size: int) -> None:
        self._least, self._most = (checked_size(size, "RandomSizeCrop")[0] for size in (min_size, max_size))
        if self._most < self._least:
            raise UsageError(f"RandomSizeCrop: max_size is {max_size} and min_size {min_size}; give the lesser first")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        numbers = random.uniform(4)
        most = np.minimum(geometry.size, self._most)
        least = np.minimum(most, self._least)
        size = least + np.floor(numbers[:, :2] * (most - least + 1)).astype(np.int64)
        corner = np.floor(numbers[:, 2:] * (geometry.size - size + 1)).astype(np.int64)
        return geometry.crop(corner, size)
