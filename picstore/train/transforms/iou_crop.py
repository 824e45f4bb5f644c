"""RandomIoUCrop: a crop that overlaps with an object, drawn by trial, for all images of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.errors import UsageError
from picstore.train.transforms.arguments import is_number
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # torchvision's
_MAX_PAIRS = 1 << 18  # of a crop and a box that are compared at once, 100 bytes each
_ROUNDS = 100  # torchvision's loop has no end: one of seven options leaves the image, so 2e-7 of images need more


class RandomIoUCrop:
    """Crop a box that overlaps enough with at least one object (Liu et al., "SSD", ECCV 2016).

    A least overlap is drawn from ``sampler_options``; 1 leaves the image as it is. Up to ``trials`` boxes are drawn;
    the first one is taken that holds the center of an object's box and whose intersection over union with such a box is
    large enough. If none is, another least overlap is drawn. Objects whose center is outside are dropped. The loader's
    ``targets`` must name ``"boxes"``.

    Args:
        min_scale, max_scale: least and greatest factor of each side.
        min_aspect_ratio, max_aspect_ratio: least and greatest width / height of the crop.
        sampler_options: least overlaps, by default 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: boxes for each least overlap.

    Raises:
        UsageError: a range is empty or not above 0, there are no options, or ``trials`` is not in 1 … 1000.
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
        if not isinstance(trials, int) or not 1 <= trials <= 1000:
            raise UsageError(f"{name}: trials is {trials}; give an integer, 1 to 1000")
        self._options, self._trials = np.array(options), trials

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
        """One least overlap and its trials.

        Returns:
            Whether a box was found, bool (n,); left, top, width, height int64 (n, 4); whether to leave the image.
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
    """Largest intersection over union of crops (n, t, 4) with the boxes (n, m, 4) whose centers they hold: (n, t).

    Crops are left, top, width, height; boxes left, top, right, bottom. −1 where there is no such box.
    """
    # All images at once would take gigabytes if one of them shows a crowd.
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
    """Whether crops (n, t, 4) hold the centers of boxes (n, m, 4): bool (n, t, m)."""
    corner, center = crops[:, :, None, :2], (boxes[:, None, :, :2] + boxes[:, None, :, 2:]) / 2
    hold: Bools = np.logical_and.reduce((corner < center) & (center < corner + crops[:, :, None, 2:]), axis=3)
    return hold
