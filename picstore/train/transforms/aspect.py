"""Resizes that keep the aspect ratio: to cover a bucket's size, and to a number of patches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.arguments import Interpolation, Size, checked_interpolation, checked_size, is_number
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

_SMALLEST, _LARGEST, _STEP = 1e-6, 100.0, 1e-5  # timm's bounds and precision of a scale


class ResizeToCover:
    """Resize to the smallest size at the same aspect ratio that covers (height, width); a crop of that size follows.

    Uses no random numbers, or one if an interpolation is drawn.

    Args:
        size: pixels.
        interpolation, antialias: as for ``Resize``.

    Raises:
        UsageError: a side is not in 1 … 32768, or another argument has another value.
    """

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(self, size: Size, interpolation: Interpolation = "bilinear", antialias: bool | None = True) -> None:
        self._size = checked_size(size, "ResizeToCover")
        self._interpolation = checked_interpolation(interpolation, "ResizeToCover")
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        least = np.array(self._size[::-1])
        # In integers: one side is exact, and the other is rounded up by less than a pixel.
        narrow = geometry.size[:, 0] * least[1] <= geometry.size[:, 1] * least[0]
        width = np.where(narrow, least[0], -(-geometry.size[:, 0] * least[1] // geometry.size[:, 1]))
        height = np.where(narrow, -(-geometry.size[:, 1] * least[0] // geometry.size[:, 0]), least[1])
        size = np.stack([width, height], axis=1)
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)


class ResizeToSequence:
    """Resize to as many patches as fit into a sequence, at about the same aspect ratio: timm's class of that name.

    Both sides become multiples of the patch. Uses no random numbers, or one if an interpolation is drawn.

    Args:
        patch_size: pixels.
        max_seq_len: patches.
        max_ratio: of an image's new side to its old one, at most; timm's, None for no limit.
        interpolation, antialias: as for ``Resize``.

    Raises:
        UsageError: a number is not positive, or another argument has another value.
    """

    fixes_size: tuple[int, int] | None = None
    varies_size = True

    def __init__(
        self,
        patch_size: int,
        max_seq_len: int = 1024,
        max_ratio: float | None = None,
        interpolation: Interpolation = "bicubic",
        antialias: bool | None = True,
    ) -> None:
        self._patch = checked_size(patch_size, "ResizeToSequence", "patch_size")[0]
        if not isinstance(max_seq_len, int) or max_seq_len < 1:
            raise UsageError(f"ResizeToSequence: max_seq_len is {max_seq_len!r}; give a number of patches")
        if max_ratio is not None and (not is_number(max_ratio) or max_ratio <= 0):
            raise UsageError(f"ResizeToSequence: max_ratio is {max_ratio!r}; give a positive number")
        self._length, self._max_ratio = max_seq_len, max_ratio
        self._interpolation = checked_interpolation(interpolation, "ResizeToSequence")
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size = self._patches(geometry.size, self._scale(geometry.size)) * self._patch
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)

    def _scale(self, size: I64) -> F64:
        """The largest scales at which images have at most the allowed number of patches, by timm's bisection."""
        low, high = np.full(len(size), _SMALLEST), np.full(len(size), _LARGEST)
        while len(size) and high[0] - low[0] >= _STEP:
            middle = (low + high) / 2
            fits = self._patches(size, middle).prod(axis=1) <= self._length
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
        return low if self._max_ratio is None else np.minimum(low, self._max_ratio)

    def _patches(self, size: I64, scale: F64) -> I64:
        patches: I64 = np.maximum(np.ceil(size * scale[:, None] / self._patch), 1).astype(np.int64)
        return patches
