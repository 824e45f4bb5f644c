"""Random sizes, for detection: names, parameters and rounding of ``torchvision.transforms.v2``, and one of DETR's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.arguments import (
    Fill,
    Interpolation,
    Size,
    checked_fill,
    checked_interpolation,
    checked_probability,
    checked_range,
    checked_size,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.crops import proportional_size
from picstore.train.transforms.geometry import Geometry


class _RandomResize:
    """Resizes each image to a size of its own. ``_sizes`` draws them."""

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, interpolation: Interpolation, antialias: bool | None) -> None:
        self._interpolation = checked_interpolation(interpolation, type(self).__name__)
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size = np.maximum(self._sizes(geometry.size, random.uniform(1)), 1)
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)

    def _sizes(self, size: I64, number: F64) -> I64:
        """New sizes int64 (n, 2), by one uniform number of each image, float64 (n, 1)."""
        raise NotImplementedError


class RandomResize(_RandomResize):
    """Resize the shorter side to a random number of pixels, at the same aspect ratio. Uses 1 random number.

    Args:
        min_size, max_size: least number of pixels, and the first that is too large.
        interpolation, antialias: as of :class:`picstore.Resize`.

    Raises:
        UsageError: a size is not in 1 … 32768, or ``max_size`` is not above ``min_size``.
    """

    def __init__(
        self,
        min_size: int,
        max_size: int,
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self._low, self._high = (checked_size(size, "RandomResize")[0] for size in (min_size, max_size))
        if self._high <= self._low:
            raise UsageError(f"RandomResize: max_size is {max_size} and min_size {min_size}; give a greater max_size")

    def _sizes(self, size: I64, number: F64) -> I64:
        shorter = self._low + np.floor(number * (self._high - self._low)).astype(np.int64)
        return proportional_size(size, shorter, None)


class RandomShortestSize(_RandomResize):
    """Resize the shorter side to one of several lengths, at the same aspect ratio. Uses 1 random number.

    Args:
        min_size: pixels of the shorter side, one number or several to choose from.
        max_size: the longer side is at most that; the shorter one becomes shorter for it.
        interpolation, antialias: as of :class:`picstore.Resize`.

    Raises:
        UsageError: a size is not in 1 … 32768, or there is none.
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
        listed = list(min_size) if isinstance(min_size, Sequence) else [min_size]
        if not listed:
            raise UsageError(f"{name}: min_size is {min_size}; give at least one number of pixels")
        self._shorter = np.array([checked_size(size, name)[0] for size in listed])
        self._longest = None if max_size is None else checked_size(max_size, name)[0]

    def _sizes(self, size: I64, number: F64) -> I64:
        chosen = self._shorter[np.floor(number[:, 0] * len(self._shorter)).astype(np.int64)]
        ratio: F64 = chosen / size.min(axis=1)
        if self._longest is not None:
            ratio = np.minimum(ratio, self._longest / size.max(axis=1))
        scaled: I64 = (size * ratio[:, None]).astype(np.int64)
        return scaled


class ScaleJitter(_RandomResize):
    """Resize to fit into ``target_size``, times a random factor (Ghiasi et al., "Simple Copy-Paste", CVPR 2021).

    Uses 1 random number.

    Args:
        target_size: width and height, in this order as in torchvision, that the image fits into at a factor of 1.
        scale_range: least and greatest factor.
        interpolation, antialias: as of :class:`picstore.Resize`.

    Raises:
        UsageError: a side is not in 1 … 32768, or a factor is not above 0.
    """

    def __init__(
        self,
        target_size: Size,
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self._target = np.array(checked_size(target_size, "ScaleJitter"))
        self._range = checked_range(scale_range, "ScaleJitter: scale_range")
        if self._range[0] <= 0:
            raise UsageError(f"ScaleJitter: scale_range is {scale_range}; give two factors above 0")

    def _sizes(self, size: I64, number: F64) -> I64:
        low, high = self._range
        factor = (self._target / size).min(axis=1, keepdims=True) * (low + (high - low) * number)
        scaled: I64 = (size * factor).astype(np.int64)
        return scaled


class RandomZoomOut:
    """Put the image at a random position of a larger canvas, with probability ``p`` (Liu et al., "SSD", ECCV 2016).

    Uses 4 random numbers: chance, factor, x, y.

    Args:
        fill: colour of the canvas: grey level 0 to 255, or (red, green, blue).
        side_range: least and greatest factor of the sides, at least 1.
        p: probability.

    Raises:
        UsageError: an argument has another value.
    """

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, fill: Any = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5) -> None:
        self.fill: Fill = checked_fill(fill, "RandomZoomOut")
        self._range = checked_range(side_range, "RandomZoomOut: side_range")
        if self._range[0] < 1:
            raise UsageError(f"RandomZoomOut: side_range is {side_range}; give two factors of at least 1")
        self._p = checked_probability(p, "RandomZoomOut")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        chance, factor, *position = random.uniform(4).T[:, :, None]
        low, high = self._range
        canvas = (geometry.size * (low + (high - low) * factor)).astype(np.int64)
        canvas = np.where(chance < self._p, canvas, geometry.size)
        corner = ((canvas - geometry.size) * np.concatenate(position, axis=1)).astype(np.int64)
        return geometry.with_fill(self.fill).crop(-corner, canvas)


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
