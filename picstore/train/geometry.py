"""Geometric transforms as arithmetic on boxes: a list of them becomes one resampling per image.

Nothing here touches a pixel. A ``Geometry`` says, for every image of a batch, which box of the source becomes the
output; each transform maps one ``Geometry`` to the next, for the whole batch at once; ``train/resample.py`` executes
the last one. Names, parameters and rounding are those of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from picstore import draw
from picstore.errors import UsageError

F64: TypeAlias = npt.NDArray[np.float64]
I64: TypeAlias = npt.NDArray[np.int64]
Size: TypeAlias = "int | tuple[int, int]"

_TRIES = 10  # torchvision's: then a central crop
_MAX_SIZE = 1 << 15  # pixels a side; what a baseline JPEG can have is twice that


@dataclass(frozen=True)
class Geometry:
    """How each of n images becomes its output.

    Attributes:
        source: int64 (n, 2), width and height of the images.
        box: float64 (n, 4), left, top, width, height of the region that becomes the output, in source pixels; may be
            fractional, and may lie outside of the image.
        clip: int64 (n, 4), left, top, right, bottom in source pixels. The filter sees nothing outside of it, and
            outputs whose centre lies outside are zero. Inside the clip but outside the image all is zero.
        size: int64 (n, 2), width and height of the output so far.
        flip: bool (n,), whether the output is mirrored left to right.
        antialias: whether the filter is widened on minification; False is plain bilinear interpolation.
    """

    source: I64
    box: F64
    clip: I64
    size: I64
    flip: npt.NDArray[np.bool_]
    antialias: bool

    @classmethod
    def of_images(cls, widths: npt.ArrayLike, heights: npt.ArrayLike) -> Geometry:
        """The identity for images of these widths and heights in pixels, each (n,)."""
        size = np.stack([np.asarray(widths, dtype=np.int64), np.asarray(heights, dtype=np.int64)], axis=1)
        clip = np.concatenate([np.zeros_like(size), size], axis=1)
        return cls(size, clip.astype(np.float64), clip, size, np.zeros(len(size), dtype=np.bool_), True)

    def reach(self) -> I64:
        """int64 (n, 4): left, top, right, bottom of the source pixels that the filter can touch.

        What lies outside need not be decoded. Empty (right ≤ left or bottom ≤ top) where all output is padding.
        """
        corner, extent = self.box[:, :2], self.box[:, 2:]
        support = np.maximum(extent / self.size, 1.0) if self.antialias else np.ones_like(extent)
        low = np.floor(corner - support).astype(np.int64)
        high = np.ceil(corner + extent + support).astype(np.int64)
        low = np.maximum(np.maximum(low, self.clip[:, :2]), 0)
        high = np.minimum(np.minimum(high, self.clip[:, 2:]), self.source)
        return np.concatenate([low, high], axis=1)


class Draws:
    """Random numbers for the images of a batch, each a function of (seed, epoch, record id, position) only.

    Args:
        seed: the user's.
        epoch: counts from 0.
        ids: (n,), the records' ids.
    """

    def __init__(self, seed: int, epoch: int, ids: npt.ArrayLike) -> None:
        words = np.asarray(ids).astype(np.uint64)
        self._keys = draw.keys(draw.key(draw.AUGMENT, seed, epoch), words)[:, None]
        self._position = 0

    def unit(self, count: int) -> F64:
        """The next ``count`` uniform numbers in [0, 1) of every image: float64 (n, count)."""
        counters = np.arange(self._position, self._position + count, dtype=np.uint64)
        self._position += count
        return draw.unit(self._keys, counters)


class Transform(Protocol):
    """One step on the geometry of a batch."""

    @property
    def fixes_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the size of the input."""

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        """The geometry after this step; takes as many draws for one image as for any other."""


def compose(transforms: Sequence[Transform], geometry: Geometry, draws: Draws) -> Geometry:
    """Apply transforms in order; still one resampling per image."""
    for transform in transforms:
        geometry = transform(geometry, draws)
    return geometry


def output_size(transforms: Sequence[Transform]) -> tuple[int, int] | None:
    """(height, width) of every output where the list fixes it for all images, otherwise None."""
    for i in reversed(range(len(transforms))):
        fixed = transforms[i].fixes_size
        if fixed is not None:
            # What follows depends on the size alone, so one image shows where it leads.
            image = Geometry.of_images([fixed[1]], [fixed[0]])
            width, height = compose(transforms[i + 1 :], image, Draws(0, 0, [0])).size[0]
            return int(height), int(width)
    return None


class Resize:
    """Resize to (height, width), or the shorter side to ``size`` with the ratio of the sides kept.

    Args:
        size: pixels; an int is the shorter side, the longer one is rounded down.
        antialias: widen the filter on minification; one False in a list makes all of it plain bilinear.

    Raises:
        UsageError: a side is not in 1 … 32768.
    """

    def __init__(self, size: Size, *, antialias: bool = True) -> None:
        sides = _sides(size, "Resize")
        self.fixes_size = sides if isinstance(size, (tuple, list)) else None
        self._shorter = sides[0]
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        if self.fixes_size is not None:
            size = _everywhere(self.fixes_size, geometry)
        else:
            shorter: I64 = geometry.size.min(axis=1, keepdims=True)
            size = (self._shorter * geometry.size / shorter).astype(np.int64)
        return replace(geometry, size=size, antialias=geometry.antialias and self._antialias)


class CenterCrop:
    """Cut (height, width) out of the middle, or a square; where the image is smaller it is padded with zeros.

    Raises:
        UsageError: a side is not in 1 … 32768.
    """

    def __init__(self, size: Size) -> None:
        self.fixes_size = _sides(size, "CenterCrop")

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        size = _everywhere(self.fixes_size, geometry)
        spare = geometry.size - size
        corner = np.where(spare < 0, -(-spare // 2), np.rint(spare / 2).astype(np.int64))
        return _crop(geometry, corner, size)


class RandomResizedCrop:
    """Cut a random part, of random area and ratio of sides, and resize it to (height, width) or a square.

    Ten times an area (uniform in ``scale`` × the image's) and a ratio width / height (log-uniform in ``ratio``) are
    drawn; the first box that fits is placed uniformly; if none fits, the largest central box of a permitted ratio is
    taken (Szegedy et al., "Going deeper with convolutions", CVPR 2015, as torchvision implements it).

    Args:
        size: pixels.
        scale: least and greatest part of the area.
        ratio: least and greatest width / height.
        antialias: widen the filter on minification; one False in a list makes all of it plain bilinear.

    Raises:
        UsageError: a side is not in 1 … 32768, or a range is empty or not above zero.
    """

    def __init__(
        self,
        size: Size,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        antialias: bool = True,
    ) -> None:
        self.fixes_size = _sides(size, "RandomResizedCrop")
        self._scale = _range(scale, "scale")
        self._ratio = _range(ratio, "ratio")
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        size, corner = self._draw(geometry.size, draws.unit(2 * _TRIES + 2))
        cut = _crop(geometry, corner, size)
        # The resize must not see beyond the crop. Where the crop of a resized image ends inside a source pixel, that
        # pixel is kept.
        low = np.floor(cut.box[:, :2]).astype(np.int64)
        high = np.ceil(cut.box[:, :2] + cut.box[:, 2:]).astype(np.int64)
        clip = np.concatenate([np.maximum(cut.clip[:, :2], low), np.minimum(cut.clip[:, 2:], high)], axis=1)
        size = _everywhere(self.fixes_size, geometry)
        return replace(cut, clip=clip, size=size, antialias=cut.antialias and self._antialias)

    def _draw(self, image: I64, numbers: F64) -> tuple[I64, I64]:
        """Size and corner of the boxes, int64 (n, 2) each, from 22 numbers for each image."""
        areas, ratios, place = numbers[:, :_TRIES], numbers[:, _TRIES : 2 * _TRIES], numbers[:, 2 * _TRIES :]
        area = image.prod(axis=1)[:, None] * (self._scale[0] + (self._scale[1] - self._scale[0]) * areas)
        low, high = math.log(self._ratio[0]), math.log(self._ratio[1])
        ratio = np.exp(low + (high - low) * ratios)
        tries = np.stack([np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))], axis=2)
        fits = ((tries > 0) & (tries <= image[:, None, :])).all(axis=2)
        first = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
        found = fits.max(axis=1)[:, None]
        size = np.where(found, first, self._largest(image)).astype(np.int64)
        corner = np.where(found, np.floor(place * (image - size + 1)), (image - size) // 2)
        return size, corner.astype(np.int64)

    def _largest(self, image: I64) -> F64:
        """The largest boxes whose ratio is permitted, (n, 2)."""
        ratio = image[:, 0] / image[:, 1]
        width = np.where(ratio > self._ratio[1], np.rint(image[:, 1] * self._ratio[1]), image[:, 0])
        height = np.where(ratio < self._ratio[0], np.rint(image[:, 0] / self._ratio[0]), image[:, 1])
        size: F64 = np.maximum(np.stack([width, height], axis=1), 1.0)
        return size


class RandomHorizontalFlip:
    """Mirror left to right with probability ``p``.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise UsageError(f"RandomHorizontalFlip: p is {p}; give a probability, 0 to 1")
        self._p = p

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        return replace(geometry, flip=geometry.flip ^ (draws.unit(1)[:, 0] < self._p))


def _everywhere(sides: tuple[int, int], geometry: Geometry) -> I64:
    """(height, width) as the size of all images: int64 (n, 2), width first."""
    return np.broadcast_to(np.array(sides[::-1], dtype=np.int64), geometry.size.shape)


def _crop(geometry: Geometry, corner: I64, size: I64) -> Geometry:
    """Cut boxes, in pixels of the output so far, out of it; a box may reach beyond it and then holds zeros there."""
    mirrored = geometry.size[:, 0] - corner[:, 0] - size[:, 0]
    corner = np.stack([np.where(geometry.flip, mirrored, corner[:, 0]), corner[:, 1]], axis=1)
    scale = geometry.box[:, 2:] / geometry.size
    start = geometry.box[:, :2] + corner * scale
    box = np.concatenate([start, size * scale], axis=1)
    # Pixels that were not resized before can be cut exactly: what was cut off stays invisible to a later resize, and
    # zeros added around the image are visible to it. After a resize the filter has seen across the edge already.
    exact = (scale == 1) & (start == np.floor(start))
    low, high = geometry.clip[:, :2], geometry.clip[:, 2:]
    cut_low = start.astype(np.int64)
    cut_high = cut_low + size
    cut_low = np.where(low <= 0, cut_low, np.maximum(low, cut_low))
    cut_high = np.where(high >= geometry.source, cut_high, np.minimum(high, cut_high))
    clip = np.concatenate([np.where(exact, cut_low, low), np.where(exact, cut_high, high)], axis=1)
    return replace(geometry, box=box, clip=clip, size=size)


def _sides(size: Size, name: str) -> tuple[int, int]:
    """(height, width), checked."""
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    whole = len(sides) == 2 and all(isinstance(side, (int, np.integer)) for side in sides)
    if not whole or not all(0 < side <= _MAX_SIZE for side in sides):
        raise UsageError(f"{name}: size is {size}; give one or two (height, width) integers, 1 to {_MAX_SIZE}")
    return int(sides[0]), int(sides[1])


def _range(bounds: tuple[float, float], name: str) -> tuple[float, float]:
    low, high = bounds if len(bounds) == 2 else (0.0, 0.0)
    if not 0 < low <= high < math.inf:
        raise UsageError(f"RandomResizedCrop: {name} is {bounds}; give two numbers above zero, the lesser first")
    return float(low), float(high)
