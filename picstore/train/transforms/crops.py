"""Crops, resizes, padding and flips, with names, parameters and rounding of ``torchvision.transforms.v2``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms.arguments import (
    Fill,
    Interpolation,
    Padding,
    Size,
    checked_fill,
    checked_interpolation,
    checked_padding,
    checked_padding_mode,
    checked_probability,
    checked_size,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

TRIES = 10  # torchvision's; afterwards it takes a central crop


class Resize:
    """Resize to (height, width), or at the same aspect ratio.

    Uses no random numbers, or one if an interpolation is drawn.

    Args:
        size: pixels; an int is the shorter side, and the longer one is rounded down. None fits the longer side to
            ``max_size``.
        interpolation: "nearest", "box", "bilinear", "bicubic" or "lanczos", torchvision's or Pillow's member of that
            name, a sequence of which each image gets one, or "random" for bilinear or bicubic. Of several in a list of
            transforms the widest is used. "nearest" takes the pixel under the center, as torch's "nearest-exact".
        max_size: the longer side is at most that.
        antialias: widen the filter on minification; one False makes the whole list plain interpolation.

    Raises:
        UsageError: a side is not in 1 … 32768, or another argument has another value.
    """

    def __init__(
        self,
        size: Size | None,
        interpolation: Interpolation = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        self._longest = None if max_size is None else checked_size(max_size, "Resize", "max_size")[0]
        sides = None if size is None else checked_size(size, "Resize")
        self._shorter = None if sides is None else sides[0]
        self.fixes_size = sides if isinstance(size, (tuple, list)) and len(size) == 2 else None
        if (size is None and max_size is None) or (self.fixes_size is not None and max_size is not None):
            raise UsageError(f"Resize: size is {size} and max_size {max_size}; give max_size with an integer or None")
        if self._shorter is not None and self._longest is not None and self._longest <= self._shorter:
            raise UsageError(f"Resize: max_size is {max_size} and size {size}; give a max_size above size")
        self._interpolation = checked_interpolation(interpolation, "Resize")
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        if self.fixes_size is not None:
            size = _same_size(self.fixes_size, geometry)
        else:
            size = proportional_size(geometry.size, self._shorter, self._longest)
        return replace(geometry.resample_by(random.choice(self._interpolation), self._antialias), size=size)


class CenterCrop:
    """Crop (height, width), or a square, from the center. Uses no random numbers.

    A smaller image is padded with the fill of the list of transforms, black by default.
    Raises:
        UsageError: a side is not in 1 … 32768.
    """

    def __init__(self, size: Size) -> None:
        self.fixes_size = checked_size(size, "CenterCrop")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size = _same_size(self.fixes_size, geometry)
        spare = geometry.size - size
        corner = np.where(spare < 0, -(-spare // 2), np.rint(spare / 2).astype(np.int64))
        return geometry.crop(corner, size)


class Pad:
    """Pad the image with one color. Uses no random numbers.

    Args:
        padding: pixels, 0 to 32768: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: grey level 0 to 255, or (red, green, blue).
        padding_mode: "constant"; or "edge", "reflect" or "symmetric", which repeat the image's border, if this is the
            list's first transform but for flips.

    Raises:
        UsageError: an argument has another value.
    """

    fixes_size: tuple[int, int] | None = None

    def __init__(self, padding: Padding, fill: Any = 0, padding_mode: str = "constant") -> None:
        self._padding = checked_padding(padding, "Pad")
        self.fill: Fill = checked_fill(fill, "Pad")
        self.border = checked_padding_mode(padding_mode, "Pad")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        left, top, right, bottom = self._padding
        size = geometry.size + np.array([left + right, top + bottom])
        padded = geometry.with_fill(self.fill).crop(np.broadcast_to([-left, -top], size.shape), size)
        return padded.with_border(self.border) if self.border else padded


class RandomCrop:
    """Crop (height, width), or a square, at a random position. Uses 2 random numbers: x, y.

    Args:
        size: pixels.
        padding: pixels added on each side before the crop, see ``Pad``.
        pad_if_needed: pad an image smaller than ``size`` on both sides.
        fill: color of the padding: grey level 0 to 255, or (red, green, blue).
        padding_mode: "constant"; or "edge", "reflect" or "symmetric", which repeat the image's border, if this is the
            list's first transform but for flips.
        multiple_of: pixels of which left and top are a multiple, so that the crop falls on whole pixels of the image
            reduced by this factor; not in torchvision.

    Raises:
        UsageError: an argument has another value. The call raises it for an image smaller than ``size``.
    """

    def __init__(
        self,
        size: Size,
        padding: Padding | None = None,
        pad_if_needed: bool = False,
        fill: Any = 0,
        padding_mode: str = "constant",
        *,
        multiple_of: int = 1,
    ) -> None:
        self.fixes_size = checked_size(size, "RandomCrop")
        self._padding = checked_padding(0 if padding is None else padding, "RandomCrop")
        self._pad_if_needed = bool(pad_if_needed)
        self.fill: Fill = checked_fill(fill, "RandomCrop")
        self.border = checked_padding_mode(padding_mode, "RandomCrop")
        if not isinstance(multiple_of, int) or multiple_of < 1:
            raise UsageError(f"RandomCrop: multiple_of is {multiple_of}; give pixels, at least 1")
        self._multiple_of = multiple_of

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        left, top, right, bottom = self._padding
        size = _same_size(self.fixes_size, geometry)
        padded = geometry.size + np.array([left + right, top + bottom])
        lacking = np.maximum(size - padded, 0)
        if lacking.any() and not self._pad_if_needed:
            width, height = padded[lacking.any(axis=1)][0]
            raise UsageError(
                f"RandomCrop: a crop of {size[0, 0]} × {size[0, 1]} is larger than an image of {width} × {height}; "
                "give pad_if_needed=True, or resize first"
            )
        spare = padded + 2 * lacking - size
        corner = np.floor(random.uniform(2) * (spare // self._multiple_of + 1)).astype(np.int64) * self._multiple_of
        cropped = geometry.with_fill(self.fill).crop(corner - lacking - [left, top], size)
        return cropped.with_border(self.border) if self.border else cropped


class RandomResizedCrop:
    """Crop a box of random area and aspect ratio, and resize it to (height, width) or a square.

    Ten pairs of an area (uniform in ``scale`` × the image's) and a ratio width / height (log-uniform in ``ratio``) are
    drawn. The first box that fits is placed uniformly; if none fits, the largest central box of a permitted ratio is
    taken (Szegedy et al., "Going deeper with convolutions", CVPR 2015, as torchvision implements it). Uses 22 random
    numbers: ten areas, ten ratios, x, y; and one if an interpolation is drawn.

    Args:
        size: pixels.
        scale: least and greatest fraction of the image's area.
        ratio: least and greatest width / height.
        interpolation, antialias: as for ``Resize``.

    Raises:
        UsageError: a side is not in 1 … 32768, a range is empty or not above zero, or the interpolation is unknown.
    """

    def __init__(
        self,
        size: Size,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: Interpolation = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self.fixes_size = checked_size(size, "RandomResizedCrop")
        self._scale = _range(scale, "scale")
        self._ratio = _range(ratio, "ratio")
        self._interpolation = checked_interpolation(interpolation, "RandomResizedCrop")
        self._antialias = bool(antialias)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size, corner = self._draw_boxes(geometry.size, random.uniform(2 * TRIES + 2))
        cropped = geometry.crop(corner, size).clip_to_canvas()  # the resize must not see beyond the crop
        resized = cropped.resample_by(random.choice(self._interpolation), self._antialias)
        return replace(resized, size=_same_size(self.fixes_size, geometry))

    @property
    def single_interpolation(self) -> int | None:
        """The interpolation of all images; None if one is drawn for each."""
        return self._interpolation[0] if len(self._interpolation) == 1 else None

    @property
    def antialias(self) -> bool:
        """Whether the filter is widened on minification."""
        return self._antialias

    @property
    def bounds(self) -> F64:
        """float64 (4,): least fraction of the area, and how much more it may be; least and greatest ratio."""
        return np.array([self._scale[0], self._scale[1] - self._scale[0], *self._ratio])

    def _draw_boxes(self, image: I64, numbers: F64) -> tuple[I64, I64]:
        """Sizes and corners of the boxes, int64 (n, 2) each, from float64 (n, 22)."""
        areas, ratios, position = numbers[:, :TRIES], numbers[:, TRIES : 2 * TRIES], numbers[:, 2 * TRIES :]
        area = (image[:, :1] * image[:, 1:]) * (self._scale[0] + (self._scale[1] - self._scale[0]) * areas)
        low, high = math.log(self._ratio[0]), math.log(self._ratio[1])
        ratio = np.exp(low + (high - low) * ratios)
        width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
        fits = (width > 0) & (width <= image[:, :1]) & (height > 0) & (height <= image[:, 1:])
        chosen = np.arange(len(image)), fits.argmax(axis=1)
        first = np.stack([width[chosen], height[chosen]], axis=1)
        found = fits[chosen][:, None]
        size = np.where(found, first, self._largest(image)).astype(np.int64)
        corner = np.where(found, np.floor(position * (image - size + 1)), (image - size) // 2)
        return size, corner.astype(np.int64)

    def _largest(self, image: I64) -> F64:
        """Sizes of the largest boxes of a permitted ratio, float64 (n, 2)."""
        ratio = image[:, 0] / image[:, 1]
        width = np.where(ratio > self._ratio[1], np.rint(image[:, 1] * self._ratio[1]), image[:, 0])
        height = np.where(ratio < self._ratio[0], np.rint(image[:, 0] / self._ratio[0]), image[:, 1])
        size: F64 = np.maximum(np.stack([width, height], axis=1), 1.0)
        return size


class RandomFlip:
    """The base of flips.

    Attributes:
        p: probability.
        mirrored: whether left to right, and top to bottom.
    """

    only_mirrors = True  # so that a border that is repeated afterwards is the stored image's
    fixes_size: tuple[int, int] | None = None
    mirrored: tuple[bool, bool]

    def __init__(self, p: float = 0.5) -> None:
        self.p = checked_probability(p, type(self).__name__)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        return geometry.mirror((random.uniform(1) < self.p) & self.mirrored)


class RandomHorizontalFlip(RandomFlip):
    """Mirror left to right with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    mirrored = (True, False)


class RandomVerticalFlip(RandomFlip):
    """Mirror top to bottom with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    mirrored = (False, True)


def proportional_size(size: I64, shorter: int | I64 | None, longest: int | None) -> I64:
    """Sizes of canvases resized at the same aspect ratio, rounded down: int64 (n, 2).

    Args:
        size: int64 (n, 2).
        shorter: pixels of the shorter side, or int64 (n, 1) of each; None for as many as ``longest`` allows.
        longest: limit of the longer side; None for no limit.
    """
    least: I64 = size.min(axis=1, keepdims=True)
    resized = size if shorter is None else (shorter * size / least).astype(np.int64)
    if longest is not None:
        most: I64 = resized.max(axis=1, keepdims=True)
        limited = np.where(resized == most, longest, (longest * resized / most).astype(np.int64))
        resized = np.where((most > longest) | (shorter is None), limited, resized)
    return np.maximum(resized, 1)


def _same_size(sides: tuple[int, int], geometry: Geometry) -> I64:
    """(height, width) for all images of a batch: int64 (n, 2), width first."""
    return np.broadcast_to(np.array(sides[::-1], dtype=np.int64), geometry.size.shape)


def _range(bounds: tuple[float, float], name: str) -> tuple[float, float]:
    low, high = bounds if len(bounds) == 2 else (0.0, 0.0)
    if not 0 < low <= high < math.inf:
        raise UsageError(f"RandomResizedCrop: {name} is {bounds}; give two numbers above zero, the lesser first")
    return float(low), float(high)
