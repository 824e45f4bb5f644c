"""Transforms that keep pictures upright: crops, resizes, padding and flips.

Names, parameters and rounding are those of ``torchvision.transforms.v2``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.geometry import Draws, Fill, Geometry

Size: TypeAlias = "int | tuple[int, int]"
Padding: TypeAlias = "int | Sequence[int]"

_TRIES = 10  # torchvision's: then a central crop
_MAX_SIZE = 1 << 15  # pixels a side; what a baseline JPEG can have is twice that


class Resize:
    """Resize to (height, width), or the shorter side to ``size`` with the ratio of the sides kept. Takes no draws.

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
        return replace(geometry, size=size, antialias=geometry.antialias & self._antialias)


class CenterCrop:
    """Cut (height, width) out of the middle, or a square; a smaller image is padded with the list's fill, or zeros.

    Takes no draws.

    Raises:
        UsageError: a side is not in 1 … 32768.
    """

    def __init__(self, size: Size) -> None:
        self.fixes_size = _sides(size, "CenterCrop")

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        size = _everywhere(self.fixes_size, geometry)
        spare = geometry.size - size
        corner = np.where(spare < 0, -(-spare // 2), np.rint(spare / 2).astype(np.int64))
        return geometry.crop(corner, size)


class Pad:
    """Add pixels of one colour around the image. Takes no draws.

    Args:
        padding: pixels, 0 to 32768: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: grey level 0 to 255, or (red, green, blue).
        padding_mode: ``"constant"``; others than torchvision's default are not to be had.

    Raises:
        UsageError: an argument is none of these.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(self, padding: Padding, fill: Any = 0, padding_mode: str = "constant") -> None:
        self._padding = _padding(padding, "Pad")
        self.fill: Fill = checked_fill(fill, "Pad")
        _check_mode(padding_mode, "Pad")

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        left, top, right, bottom = self._padding
        size = geometry.size + np.array([left + right, top + bottom])
        return geometry.filled(self.fill).crop(np.broadcast_to([-left, -top], size.shape), size)


class RandomCrop:
    """Cut (height, width) or a square out at a random place. Takes 2 draws: for x and for y.

    Args:
        size: pixels.
        padding: added before on each side, see ``Pad``.
        pad_if_needed: where the image is smaller than ``size``, add what is missing on both sides.
        fill: colour of the padding, grey level 0 to 255 or (red, green, blue).
        padding_mode: ``"constant"``; others than torchvision's default are not to be had.

    Raises:
        UsageError: an argument is none of these; when used, an image is smaller than ``size``.
    """

    def __init__(
        self,
        size: Size,
        padding: Padding | None = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.fixes_size = _sides(size, "RandomCrop")
        self._padding = _padding(0 if padding is None else padding, "RandomCrop")
        self._pad_if_needed = bool(pad_if_needed)
        self.fill: Fill = checked_fill(fill, "RandomCrop")
        _check_mode(padding_mode, "RandomCrop")

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        left, top, right, bottom = self._padding
        size = _everywhere(self.fixes_size, geometry)
        padded = geometry.size + np.array([left + right, top + bottom])
        lacking = np.maximum(size - padded, 0)
        if lacking.any() and not self._pad_if_needed:
            width, height = padded[lacking.any(axis=1)][0]
            raise UsageError(
                f"RandomCrop: a crop of {size[0, 0]} × {size[0, 1]} is larger than an image of {width} × {height}; "
                "give pad_if_needed=True, or resize before"
            )
        spare = padded + 2 * lacking - size
        place = np.floor(draws.unit(2) * (spare + 1)).astype(np.int64)
        return geometry.filled(self.fill).crop(place - lacking - [left, top], size)


class RandomResizedCrop:
    """Cut a random part, of random area and ratio of sides, and resize it to (height, width) or a square.

    Ten times an area (uniform in ``scale`` × the image's) and a ratio width / height (log-uniform in ``ratio``) are
    drawn; the first box that fits is placed uniformly; if none fits, the largest central box of a permitted ratio is
    taken (Szegedy et al., "Going deeper with convolutions", CVPR 2015, as torchvision implements it). Takes 22 draws:
    ten areas, ten ratios, x, y.

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
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        *,
        antialias: bool = True,
    ) -> None:
        self.fixes_size = _sides(size, "RandomResizedCrop")
        self._scale = _range(scale, "scale")
        self._ratio = _range(ratio, "ratio")
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        size, corner = self._draw(geometry.size, draws.unit(2 * _TRIES + 2))
        cut = geometry.crop(corner, size).hide_rest()  # the resize must not see beyond the crop
        size = _everywhere(self.fixes_size, geometry)
        return replace(cut, size=size, antialias=cut.antialias & self._antialias)

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
    """Mirror left to right with probability ``p``. Takes 1 draw.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(self, p: float = 0.5) -> None:
        self._p = _probability(p, "RandomHorizontalFlip")

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        return geometry.mirror((draws.unit(1) < self._p) & [True, False])


class RandomVerticalFlip:
    """Mirror top to bottom with probability ``p``. Takes 1 draw.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(self, p: float = 0.5) -> None:
        self._p = _probability(p, "RandomVerticalFlip")

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        return geometry.mirror((draws.unit(1) < self._p) & [False, True])


def checked_fill(fill: Any, name: str) -> Fill:
    """A colour: a grey level, or red, green, blue; None is black.

    Raises:
        UsageError: it is something else, or not whole numbers of 0 to 255.
    """
    levels = fill if isinstance(fill, (tuple, list)) else [0 if fill is None else fill]
    whole = all(isinstance(level, (int, float, np.number)) and level in range(256) for level in levels)
    if len(levels) not in (1, 3) or not whole:
        raise UsageError(f"{name}: fill is {fill}; give a level of 0 to 255, or three of them: red, green, blue")
    red, green, blue = (int(level) for level in (levels if len(levels) == 3 else levels * 3))
    return red, green, blue


def _everywhere(sides: tuple[int, int], geometry: Geometry) -> I64:
    """(height, width) as the size of all images: int64 (n, 2), width first."""
    return np.broadcast_to(np.array(sides[::-1], dtype=np.int64), geometry.size.shape)


def _sides(size: Size, name: str) -> tuple[int, int]:
    """(height, width), checked."""
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    whole = len(sides) == 2 and all(isinstance(side, (int, np.integer)) for side in sides)
    if not whole or not all(0 < side <= _MAX_SIZE for side in sides):
        raise UsageError(f"{name}: size is {size}; give one or two (height, width) integers, 1 to {_MAX_SIZE}")
    return int(sides[0]), int(sides[1])


def _padding(padding: Padding, name: str) -> tuple[int, int, int, int]:
    """Left, top, right, bottom, checked."""
    sides = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,)
    whole = all(isinstance(side, (int, np.integer)) and 0 <= side <= _MAX_SIZE for side in sides)
    if len(sides) not in (1, 2, 4) or not whole:
        raise UsageError(f"{name}: padding is {padding}; give one, two or four integers, 0 to {_MAX_SIZE}")
    left, top, right, bottom = sides * (4 // len(sides))
    return int(left), int(top), int(right), int(bottom)


def _check_mode(mode: str, name: str) -> None:
    if mode != "constant":
        raise UsageError(f"{name}: padding_mode is {mode!r}; only 'constant' is supported")


def _range(bounds: tuple[float, float], name: str) -> tuple[float, float]:
    low, high = bounds if len(bounds) == 2 else (0.0, 0.0)
    if not 0 < low <= high < math.inf:
        raise UsageError(f"RandomResizedCrop: {name} is {bounds}; give two numbers above zero, the lesser first")
    return float(low), float(high)


def _probability(p: float, name: str) -> float:
    if not 0 <= p <= 1:
        raise UsageError(f"{name}: p is {p}; give a probability, 0 to 1")
    return float(p)
