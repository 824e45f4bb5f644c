"""Resizes: to a size, to cover a bucket's size, to a number of patches, and by random factors as for detection.

Names, parameters and rounding are torchvision.transforms.v2's, except that ``ResizeToSequence`` is timm's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.arguments import (
    Interpolation,
    Size,
    checked_integer,
    checked_interpolation,
    checked_range,
    checked_size,
    is_number,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.geometry import Geometry

_SMALLEST, _LARGEST, _STEP = 1e-6, 100.0, 1e-5  # bounds and precision of ResizeToSequence's scale, as in timm


class _Resizing(Value):
    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, interpolation: Interpolation, antialias: bool | None) -> None:
        self._interpolation = checked_interpolation(interpolation, type(self).__name__)
        self._antialias = bool(antialias)

    def _resized(self, geometry: Geometry, size: I64, random: BatchRandom) -> Geometry:
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)

    def _scaled(self, geometry: Geometry, factor: F64, random: BatchRandom) -> Geometry:
        size = np.maximum((geometry.size * factor[:, None]).astype(np.int64), 1)
        return self._resized(geometry, size, random)


class Resize(_Resizing):
    """Resize to (height, width), or at the same aspect ratio.

    Uses no random numbers, or one if an interpolation is drawn.

    Args:
        size: (height, width) in pixels; or the shorter side, with the longer side rounded down; or None, to resize the
            longer side to ``max_size``.
        interpolation: "nearest" (torch's "nearest-exact"), "box", "bilinear", "bicubic" or "lanczos"; the member of
            that name in torchvision's or Pillow's enumeration; a sequence, from which one is drawn for each image; or
            "random" for bilinear or bicubic. A loader's transforms are one resampling, with the widest of their
            filters.
        max_size: maximum length of the longer side in pixels, only with an int or None as ``size``.
        antialias: whether to widen the filter if it minifies; False in one of a loader's transforms holds for all.
    """

    varies_size = False

    def __init__(
        self,
        size: Size | None,
        interpolation: Interpolation = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self._longest = None if max_size is None else checked_size(max_size, "Resize", "max_size")[0]
        sides = None if size is None else checked_size(size, "Resize")
        self._shorter = None if sides is None else sides[0]
        self.fixes_size = sides if isinstance(size, (tuple, list)) and len(size) == 2 else None
        if (size is None and max_size is None) or (self.fixes_size is not None and max_size is not None):
            raise UsageError(f"Resize: size is {size} and max_size {max_size}; give max_size with an integer or None")
        if self._shorter is not None and self._longest is not None and self._longest <= self._shorter:
            raise UsageError(f"Resize: max_size is {max_size} and size {size}; give a max_size above size")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        if self.fixes_size is not None:
            size = same_size(self.fixes_size, geometry)
        else:
            size = proportional_size(geometry.size, self._shorter, self._longest)
        return self._resized(geometry, size, random)


class ResizeToCover(_Resizing):
    """Resize to the smallest size at the same aspect ratio that covers (height, width), before a crop of that size.

    Uses no random numbers, or one if an interpolation is drawn.

    Args:
        size: (height, width) in pixels; an int is both.
        interpolation, antialias: as for ``Resize``.
    """

    def __init__(self, size: Size, interpolation: Interpolation = "bilinear", antialias: bool | None = True) -> None:
        super().__init__(interpolation, antialias)
        self._size = checked_size(size, "ResizeToCover")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        least = np.array(self._size[::-1])
        # One side becomes exactly the target's. The other is rounded up, in integers because floats have errors.
        narrow = geometry.size[:, 0] * least[1] <= geometry.size[:, 1] * least[0]
        width = np.where(narrow, least[0], -(-geometry.size[:, 0] * least[1] // geometry.size[:, 1]))
        height = np.where(narrow, -(-geometry.size[:, 1] * least[0] // geometry.size[:, 0]), least[1])
        size = np.stack([width, height], axis=1)
        return self._resized(geometry, size, random)


class ResizeToSequence(_Resizing):
    """Resize to as many patches as fit into a sequence, at almost the same aspect ratio, as timm's ResizeToSequence.

    Both sides become multiples of ``patch_size``. Uses no random numbers, or one if an interpolation is drawn.

    Args:
        patch_size: side of a patch in pixels.
        max_seq_len: maximum number of patches of an image.
        max_ratio: maximum factor by which an image is enlarged; None for no limit.
        interpolation, antialias: as for ``Resize``.
    """

    def __init__(
        self,
        patch_size: int,
        max_seq_len: int = 1024,
        max_ratio: float | None = None,
        interpolation: Interpolation = "bicubic",
        antialias: bool | None = True,
    ) -> None:
        super().__init__(interpolation, antialias)
        self._patch = checked_size(patch_size, "ResizeToSequence", "patch_size")[0]
        if max_ratio is not None and (not is_number(max_ratio) or max_ratio <= 0):
            raise UsageError(f"ResizeToSequence: max_ratio is {max_ratio!r}; give a positive number")
        self._length = checked_integer(max_seq_len, "ResizeToSequence: max_seq_len", 1)
        self._max_ratio = max_ratio

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size = self._patches(geometry.size, self._scale(geometry.size)) * self._patch
        return self._resized(geometry, size, random)

    def _scale(self, size: I64) -> F64:
        """Return, by timm's bisection, the largest scale at which each image has at most ``max_seq_len`` patches."""
        low, high = np.full(len(size), _SMALLEST), np.full(len(size), _LARGEST)
        while len(size) and high[0] - low[0] >= _STEP:
            middle = (low + high) / 2
            fits = self._patches(size, middle).prod(axis=1) <= self._length
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return low if self._max_ratio is None else np.minimum(low, self._max_ratio)

    def _patches(self, size: I64, scale: F64) -> I64:
        return np.maximum(np.ceil(size * scale[:, None] / self._patch), 1).astype(np.int64)


class ScaleJitter(_Resizing):
    """Resize to a random multiple of the largest size that fits into ``target_size`` ("Simple Copy-Paste", CVPR 2021).

    Uses 1 random number, or 2 if an interpolation is drawn.

    Args:
        target_size: (width, height) in pixels; width first, as in torchvision.
        scale_range: minimum and maximum multiple, above 0.
        interpolation, antialias: as for ``Resize``.
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


class RandomShortestSize(_Resizing):
    """Resize the shorter side to ``min_size``, or to less if the longer side would exceed ``max_size``, as DETR does.

    Uses 1 random number, or 2 if an interpolation is drawn. As in torchvision, rounding may shorten a side by a pixel.

    Args:
        min_size: shorter side in pixels, or a list from which one is drawn for each image.
        max_size: maximum length of the longer side in pixels; None for no limit.
        interpolation, antialias: as for ``Resize``.
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


class RandomResize(_Resizing):
    """Resize the shorter side to a random size from ``min_size`` to below ``max_size``, at the same aspect ratio.

    Uses 1 random number, or 2 if an interpolation is drawn.

    Args:
        min_size, max_size: bounds of the shorter side in pixels; ``max_size`` is never drawn.
        interpolation, antialias: as for ``Resize``.
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
        return self._resized(geometry, size, random)


def proportional_size(size: I64, shorter: int | I64 | None, longest: int | None) -> I64:
    """Return the sizes of canvases resized at the same aspect ratio, rounded down: int64 (n, 2).

    Args:
        size: int64 (n, 2), sizes of the canvases before.
        shorter: new shorter side in pixels, one or int64 (n, 1); None to resize the longer side to ``longest``.
        longest: maximum length of the longer side in pixels; None for no limit.
    """
    least: I64 = size.min(axis=1, keepdims=True)
    resized = size if shorter is None else (shorter * size / least).astype(np.int64)
    if longest is not None:
        most: I64 = resized.max(axis=1, keepdims=True)
        limited = np.where(resized == most, longest, (longest * resized / most).astype(np.int64))
        resized = np.where((most > longest) | (shorter is None), limited, resized)
    return np.maximum(resized, 1)


def same_size(sides: tuple[int, int], geometry: Geometry) -> I64:
    """Return ``sides``, (height, width), as the size of each image of a batch: int64 (n, 2), width first."""
    return np.broadcast_to(np.array(sides[::-1], dtype=np.int64), geometry.size.shape)
