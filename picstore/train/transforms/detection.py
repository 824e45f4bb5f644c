"""Zooms and crops for detection, with names, parameters and rounding of ``torchvision.transforms.v2``.

Sizes of outputs differ between images; boxes, outlines and masks follow as with any transform of geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.errors import UsageError
from picstore.train.transforms.arguments import (
    Fill,
    checked_fill,
    checked_integer,
    checked_probability,
    checked_range,
    checked_size,
    is_number,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.geometry import Geometry

_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # torchvision's default of sampler_options
_MAX_PAIRS = 1 << 18  # pairs of a crop and an object's box to compare at once; a pair takes 100 bytes of memory
# Maximum number of minimum overlaps that RandomIoUCrop draws for an image; torchvision has no limit. One of the seven
# defaults leaves the image unchanged and ends the draws, so only 2e-7 of images would need more than 100.
_ROUNDS = 100


class RandomZoomOut(Value):
    """Place the image on a larger canvas, with probability ``p`` ("SSD", ECCV 2016). Uses 4 random numbers.

    The numbers are the chance, the factor by which both sides grow, and the image's position, x and y.

    Args:
        fill: color of the canvas: grey level 0 to 255, or (red, green, blue).
        side_range: minimum and maximum of the factor, at least 1.
        p: probability of enlarging the canvas.
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


class RandomSizeCrop(Value):
    """Crop a box whose sides are random numbers of pixels, as DETR does (Carion et al., ECCV 2020).

    Uses 4 random numbers: width, height, x, y.

    Args:
        min_size, max_size: minimum and maximum side in pixels, both limited to the image's side.
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


class RandomIoUCrop(Value):
    """Crop a box that overlaps enough with at least one object (Liu et al., "SSD", ECCV 2016).

    A minimum overlap is drawn from ``sampler_options``; if it is 1, the image stays unchanged. Otherwise, up to
    ``trials`` crops are drawn. The image is cropped by the first that holds the center of an object's box and whose
    intersection over union with that box reaches the minimum. If there is none, another minimum is drawn. Objects whose
    center is outside of the crop are dropped. The loader's ``targets`` must name ``"boxes"``.

    Args:
        min_scale, max_scale: minimum and maximum side of a crop, as a fraction of the image's side, above 0 to 1.
        min_aspect_ratio, max_aspect_ratio: minimum and maximum width / height of the crop.
        sampler_options: minimum overlaps, by default 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: number of crops for each minimum overlap, 1 to 1000.
    """

    fixes_size: tuple[int, int] | None = None
    varies_size = True
    needs_boxes = True

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None,
        trials: int = 40,
    ) -> None:
        name = "RandomIoUCrop"
        self._scale, self._ratio = (min_scale, max_scale), (min_aspect_ratio, max_aspect_ratio)
        for bounds, what in ((self._scale, "scale"), (self._ratio, "aspect_ratio")):
            if not all(map(is_number, bounds)) or not 0 < bounds[0] <= bounds[1]:
                raise UsageError(f"{name}: min_{what} is {bounds[0]} and max_{what} {bounds[1]}; give 0 < min ≤ max")
        if max_scale > 1:
            raise UsageError(f"{name}: max_scale is {max_scale}; give a factor of at most 1")
        options = _OPTIONS if sampler_options is None else tuple(sampler_options)
        if not options or not all(map(is_number, options)):
            raise UsageError(f"{name}: sampler_options is {sampler_options}; give at least one number")
        self._options, self._trials = np.array(options), checked_integer(trials, f"{name}: trials", 1, 1000)

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        boxes, kept = geometry.objects_on_canvas()
        boxes = np.where(kept[:, :, None], boxes, np.nan)
        crops = np.concatenate([np.zeros_like(geometry.size), geometry.size], axis=1)
        pending, cropped = np.arange(len(crops)), np.zeros((len(crops), 1), dtype=np.bool_)
        for number in range(_ROUNDS):
            trial = random.child(number).rows(pending)
            found, drawn, leave = self._try(geometry.size[pending], boxes[pending], trial)
            crops[pending[found]], cropped[pending[found]] = drawn[found], True
            pending = pending[~found & ~leave]
            if not len(pending):
                break
        inside = _hold_centers(crops[:, None].astype(np.float64), boxes)[:, 0]
        return replace(geometry.crop(crops[:, :2], crops[:, 2:]), kept=kept & (inside | ~cropped))

    def _try(self, sizes: I64, boxes: F64, random: BatchRandom) -> tuple[Bools, I64, Bools]:
        """Draw a minimum overlap and ``trials`` crops for each image, and find the first crop that reaches the overlap.

        Returns:
            bool (n,), whether a crop was found; int64 (n, 4), its left, top, width and height; and bool (n,), whether
            the drawn overlap is 1, which leaves the image unchanged.
        """
        option = self._options[np.floor(random.uniform(1)[:, 0] * len(self._options)).astype(np.int64)]
        numbers = random.uniform(4 * self._trials).reshape(len(sizes), self._trials, 4)
        low, high = self._scale
        size = np.floor(sizes[:, None] * (low + (high - low) * numbers[:, :, :2]))
        corner = np.floor((sizes[:, None] - size) * numbers[:, :, 2:])
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = size[:, :, 0] / size[:, :, 1]
            fits = (size > 0).all(axis=2) & (ratio >= self._ratio[0]) & (ratio <= self._ratio[1])
            overlap = _largest_overlap(np.concatenate([corner, size], axis=2), boxes)
            good = fits & (overlap >= option[:, None])
        first = good.argmax(axis=1)[:, None, None]
        crops = np.take_along_axis(np.concatenate([corner, size], axis=2), first, axis=1)[:, 0].astype(np.int64)
        leave = option >= 1
        return good.any(axis=1) & ~leave, crops, leave


def _largest_overlap(crops: F64, boxes: F64) -> F64:
    """Return each crop's largest intersection over union with a box whose center it holds, float64 (n, t).

    The value is −1 if a crop holds no center. ``crops`` (n, t, 4) are left, top, width, height; ``boxes`` (n, m, 4) are
    left, top, right, bottom.
    """
    # All images at once could take gigabytes, because each is padded to the number of boxes of the image with the most.
    step = max(1, _MAX_PAIRS // max(1, crops.shape[1] * boxes.shape[1]))
    pieces = [slice(k, k + step) for k in range(0, len(crops), step)]
    return np.concatenate([_overlaps(crops[piece], boxes[piece]) for piece in pieces])


def _overlaps(crops: F64, boxes: F64) -> F64:
    corner, size, box = crops[:, :, None, :2], crops[:, :, None, 2:], boxes[:, None]
    shared = np.minimum(corner + size, box[..., 2:]) - np.maximum(corner, box[..., :2])
    area = np.maximum(shared, 0).prod(axis=3)
    union = size.prod(axis=3) + (box[..., 2:] - box[..., :2]).prod(axis=3) - area
    overlap: F64 = np.where(_hold_centers(crops, boxes), area / union, -1.0).max(axis=2, initial=-1.0)
    return overlap


def _hold_centers(crops: F64, boxes: F64) -> Bools:
    """Return whether each of t crops holds the center of each of m boxes, bool (n, t, m); see ``_largest_overlap``."""
    corner, center = crops[:, :, None, :2], (boxes[:, None, :, :2] + boxes[:, None, :, 2:]) / 2
    hold: Bools = np.logical_and.reduce((corner < center) & (center < corner + crops[:, :, None, 2:]), axis=3)
    return hold
