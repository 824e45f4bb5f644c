"""Crops, padding and flips, with names, parameters and rounding of ``torchvision.transforms.v2``."""

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
    checked_integer,
    checked_interpolation,
    checked_padding,
    checked_padding_mode,
    checked_probability,
    checked_size,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.resizing import same_size

TRIES = 10  # number of boxes that RandomResizedCrop tries, as torchvision does, before it takes a central crop


class CenterCrop(Value):
    """Crop (height, width), or a square, from the center. Uses no random numbers.

    An image smaller than ``size`` is padded with the ``fill`` of the list's other transforms, or with black.
    """

    def __init__(self, size: Size) -> None:
        self.fixes_size = checked_size(size, "CenterCrop")

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size = same_size(self.fixes_size, geometry)
        spare = geometry.size - size
        corner = np.where(spare < 0, -(-spare // 2), np.rint(spare / 2).astype(np.int64))
        return geometry.crop(corner, size)


class Pad(Value):
    """Pad the image with one color. Uses no random numbers.

    Args:
        padding: pixels, 0 to 32768: one number, (left and right, top and bottom), or (left, top, right, bottom).
        fill: grey level 0 to 255, or (red, green, blue).
        padding_mode: "constant"; or "edge", "reflect" or "symmetric", which repeat pixels of the image. Only
            flips may stand before a Pad that repeats pixels.
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


class RandomCrop(Value):
    """Crop (height, width), or a square, at a random position. Uses 2 random numbers: x, y.

    Args:
        size: (height, width) in pixels; an int is both.
        padding: pixels added on each side before the crop, see ``Pad``.
        pad_if_needed: whether to pad both sides of an image smaller than ``size``, which otherwise raises UsageError.
        fill, padding_mode: see ``Pad``.
        multiple_of: number of pixels that divides the crop's left and top, so that the crop has whole pixels of an
            image reduced by ``multiple_of``; not in torchvision.
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
        self._multiple_of = checked_integer(multiple_of, "RandomCrop: multiple_of", 1)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        left, top, right, bottom = self._padding
        size = same_size(self.fixes_size, geometry)
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


class RandomResizedCrop(Value):
    """Crop a box of random area and aspect ratio, and resize it to (height, width) or a square.

    Ten pairs of an area (uniform in ``scale`` × the image's area) and a ratio width / height (log-uniform in ``ratio``)
    are drawn. The first box that fits is placed uniformly. If none fits, the crop is the largest central box of a
    permitted ratio (Szegedy et al., "Going deeper with convolutions", CVPR 2015, as torchvision implements it). Uses 22
    random numbers: ten areas, ten ratios, x, y; and one more if an interpolation is drawn.

    Args:
        size: (height, width) in pixels; an int is both.
        scale: minimum and maximum fraction of the image's area, above 0.
        ratio: minimum and maximum width / height, above 0.
        interpolation, antialias: as for ``Resize``.
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
        self.antialias = bool(antialias)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        size, corner = self._draw_boxes(geometry.size, random.uniform(2 * TRIES + 2))
        # Clip to the crop, because as in torchvision the resize's filter must not use pixels beyond the crop.
        cropped = geometry.crop(corner, size).clip_to_canvas()
        resized = cropped.resample_by(random.choice(self._interpolation), self.antialias)
        return replace(resized, size=same_size(self.fixes_size, geometry))

    @property
    def single_interpolation(self) -> int | None:
        """Code of the interpolation for all images; None if an interpolation is drawn for each image."""
        return self._interpolation[0] if len(self._interpolation) == 1 else None

    @property
    def bounds(self) -> F64:
        """Least fraction of the area, greatest minus least fraction, least ratio, greatest ratio: float64 (4,)."""
        return np.array([self._scale[0], self._scale[1] - self._scale[0], *self._ratio])

    def _draw_boxes(self, image: I64, numbers: F64) -> tuple[I64, I64]:
        """Return each image's crop, given random numbers (n, 22): sizes and left top corners, int64 (n, 2) each."""
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
        """Return the size, float64 (n, 2), of each image's largest box with a width / height within ``ratio``."""
        ratio = image[:, 0] / image[:, 1]
        width = np.where(ratio > self._ratio[1], np.rint(image[:, 1] * self._ratio[1]), image[:, 0])
        height = np.where(ratio < self._ratio[0], np.rint(image[:, 0] / self._ratio[0]), image[:, 1])
        size: F64 = np.maximum(np.stack([width, height], axis=1), 1.0)
        return size


class RandomFlip(Value):
    """Base of the horizontal and the vertical flip.

    Attributes:
        p: probability of the flip.
        mirrored: whether the flip mirrors left to right, and whether it mirrors top to bottom.
        only_mirrors: True, because a flip may stand before a pad or crop that repeats pixels of the stored image.
    """

    only_mirrors = True
    fixes_size: tuple[int, int] | None = None
    mirrored: tuple[bool, bool]

    def __init__(self, p: float = 0.5) -> None:
        self.p = checked_probability(p, type(self).__name__)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        return geometry.mirror((random.uniform(1) < self.p) & self.mirrored)


class RandomHorizontalFlip(RandomFlip):
    """Mirror left to right with probability ``p``. Uses 1 random number."""

    mirrored = (True, False)


class RandomVerticalFlip(RandomFlip):
    """Mirror top to bottom with probability ``p``. Uses 1 random number."""

    mirrored = (False, True)


def _range(bounds: tuple[float, float], name: str) -> tuple[float, float]:
    low, high = bounds if len(bounds) == 2 else (0.0, 0.0)
    if not 0 < low <= high < math.inf:
        raise UsageError(f"RandomResizedCrop: {name} is {bounds}; give two numbers above zero, the lesser first")
    return float(low), float(high)
