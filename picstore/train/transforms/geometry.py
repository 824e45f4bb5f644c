"""Geometric transforms as arithmetic: a list of them becomes one affine map, and so one resampling, per image.

Nothing here touches a pixel. A ``Geometry`` says, for every image of a batch, which part of the source becomes the
output; each transform (``train/crops.py``, ``train/rotations.py``) maps one ``Geometry`` to the next, for the whole
batch at once; ``train/render.py`` executes the last one.

Coordinates are continuous: pixel i covers [i, i + 1), x to the right, y down. A *canvas* is the picture between two
transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import F64, I64, U8, Bools
from picstore.errors import UsageError
from picstore.train.transforms.cached_property import cached_property
from picstore.train.transforms.half_planes import (
    bound,
    inverse,
    length,
    none_of,
    on_output,
    sides_of_canvas,
    sides_of_clip,
    with_sides,
)

Fill: TypeAlias = tuple[int, int, int]

_NEAR = 1e-6  # pixels: what differs by less is equal but for rounding
_FAR = float(1 << 28)  # pixels: farther away is outside of every image, and no integer need hold it


@dataclass(frozen=True)
class Geometry:
    """How each of n images becomes its output.

    Attributes:
        source: int64 (n, 2), width and height of the images.
        frame: float64 (n, 2, 3): the parallelogram of the source that becomes the output, by columns: the vector of its
            upper side, of its left side, and its left top corner, in source pixels; it may lie outside of the image.
        clip: int64 (n, 4), left, top, right, bottom in source pixels. The filter sees nothing outside of it. Inside
            the clip but outside the image all is ``fill``.
        size: int64 (n, 2), width and height of the output so far.
        edges: float64 (n, k, 3): half-planes a·x + b·y + c ≥ 0 in source coordinates, outside of which all is
            ``fill``; in pixels of the canvas whose edge it is, and drawn softly over one of these.
        antialias: bool (n,), whether the filter is widened on minification; False is plain bilinear interpolation.
        fill: uint8 (n, 3), the colour of what lies outside.
    """

    source: I64
    frame: F64
    clip: I64
    size: I64
    edges: F64
    antialias: Bools
    fill: U8

    @classmethod
    def of_images(cls, widths: npt.ArrayLike, heights: npt.ArrayLike) -> Geometry:
        """The identity for images of these widths and heights in pixels, each (n,)."""
        size = np.stack([np.asarray(widths, dtype=np.int64), np.asarray(heights, dtype=np.int64)], axis=1)
        n = len(size)
        frame = np.zeros((n, 2, 3))
        frame[:, 0, 0], frame[:, 1, 1] = size.T
        clip = np.concatenate([np.zeros_like(size), size], axis=1)
        fill = np.zeros((n, 3), dtype=np.uint8)
        return cls(size, frame, clip, size, np.empty((n, 0, 3)), np.ones(n, dtype=np.bool_), fill)

    @classmethod
    def join(cls, parts: Sequence[Geometry], order: npt.ArrayLike) -> Geometry:
        """The images of several geometries, one after the other, and of these the ones that ``order`` names."""
        chosen = np.asarray(order, dtype=np.int64)
        most = max(part.edges.shape[1] for part in parts)
        edges = [
            np.concatenate([part.edges, none_of(len(part.size), most - part.edges.shape[1])], axis=1) for part in parts
        ]
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])[chosen]
            for name in ("source", "frame", "clip", "size", "antialias", "fill")
        }
        return cls(edges=np.concatenate(edges)[chosen], **joined)

    @cached_property
    def matrix(self) -> F64:
        """float64 (n, 2, 3): takes (x, y, 1) in output pixels to the same place in source pixels."""
        sides = self.frame[:, :, :2] / self.size[:, None, :]
        return np.concatenate([sides, self.frame[:, :, 2:]], axis=2)

    @cached_property
    def upright(self) -> Bools:
        """bool (n,): whether rows stay rows; ``box`` and ``flip`` then say all that ``frame`` does."""
        upright: Bools = (self.frame[:, 0, 1] == 0) & (self.frame[:, 1, 0] == 0)
        return upright

    @cached_property
    def box(self) -> F64:
        """float64 (n, 4): left, top, width, height of the upright box around the frame, in source pixels."""
        sides, corner = self.frame[:, :, :2], self.frame[:, :, 2]
        extent = np.abs(sides).sum(axis=2)
        return np.concatenate([corner + np.minimum(sides, 0).sum(axis=2), extent], axis=1)

    @cached_property
    def flip(self) -> Bools:
        """bool (n, 2): whether an upright output is mirrored left to right, and top to bottom."""
        flip: Bools = self.frame[:, (0, 1), (0, 1)] < 0
        return flip

    @cached_property
    def scale(self) -> F64:
        """float64 (n, 2): source pixels that an output pixel spans along x and y of the source."""
        return length(self.matrix[:, :, 0], self.matrix[:, :, 1])

    @cached_property
    def shrink(self) -> F64:
        """float64 (n,): source pixels to an output pixel, in the direction in which these are the fewest."""
        along = length(self.matrix[:, 0, :2], self.matrix[:, 1, :2])
        shrink: F64 = np.minimum(self.scale, along).min(axis=1)
        return shrink

    @cached_property
    def output_edges(self) -> F64:
        """float64 (n, k, 3): ``edges`` in output coordinates, in the larger of output pixels and the canvas's."""
        return on_output(self.edges, self.matrix)

    @cached_property
    def bounded(self) -> Bools:
        """bool (n,): whether some of the output lies outside of the edges, or on them."""
        return bound(self.output_edges, self.size)

    def reach(self) -> I64:
        """int64 (n, 4): left, top, right, bottom of the source pixels that the filter can touch.

        What lies outside need not be decoded. Empty (right ≤ left or bottom ≤ top) where all output is padding.
        """
        return self._reach

    @cached_property
    def _reach(self) -> I64:
        widened = np.where(self.antialias[:, None], np.maximum(self.scale, 1.0), 1.0)
        # What is not upright is made smaller first: then the filter reaches as far from the pixels of that.
        support = np.where(self.upright[:, None] | (widened <= 1), widened, 2 * widened)
        low = np.clip(np.floor(self.box[:, :2] - support), -_FAR, _FAR).astype(np.int64)
        high = np.clip(np.ceil(self.box[:, :2] + self.box[:, 2:] + support), -_FAR, _FAR).astype(np.int64)
        low = np.maximum(np.maximum(low, self.clip[:, :2]), 0)
        high = np.minimum(np.minimum(high, self.clip[:, 2:]), self.source)
        return np.concatenate([low, high], axis=1)

    def crop(self, corner: npt.ArrayLike, size: npt.ArrayLike) -> Geometry:
        """Cut boxes out of the canvas; beyond it there is ``fill``.

        Args:
            corner, size: int64 (n, 2), left and top, width and height in pixels of the canvas.
        """
        corner, size = np.asarray(corner, dtype=np.int64), np.asarray(size, dtype=np.int64)
        linear = self.matrix[:, :, :2]
        frame = np.empty_like(self.frame)
        frame[:, :, :2] = linear * size[:, None, :]
        frame[:, :, 2] = self.frame[:, :, 2] + linear[:, :, 0] * corner[:, :1] + linear[:, :, 1] * corner[:, 1:]
        beyond = ((corner < 0) | (corner + size > self.size)).any(axis=1)
        edges = with_sides(self.edges, beyond & ~self._holds_clip, lambda: sides_of_canvas(self.matrix, self.size))
        cut = replace(self, frame=frame, size=size, edges=edges)
        # Pixels that were not resized before can be cut exactly: what was cut off stays invisible to a later resize,
        # and what was added around the image is visible to it. After a resize the filter has seen across the edge.
        start = cut.box[:, :2]
        scale = np.abs(linear[:, (0, 1), (0, 1)])
        exact = self.upright[:, None] & (scale == 1) & (start == np.floor(start))
        low, high = self.clip[:, :2], self.clip[:, 2:]
        cut_low = np.clip(start, -_FAR, _FAR).astype(np.int64)
        cut_high = cut_low + size
        cut_low = np.where(low <= 0, cut_low, np.maximum(low, cut_low))
        cut_high = np.where(high >= self.source, cut_high, np.minimum(high, cut_high))
        clip = np.concatenate([np.where(exact, cut_low, low), np.where(exact, cut_high, high)], axis=1)
        return replace(cut, clip=clip)

    def hide_rest(self) -> Geometry:
        """Hide from the filter what is not on the canvas; a source pixel that is on it in part stays visible."""
        low = np.clip(np.floor(self.box[:, :2] + _NEAR), -_FAR, _FAR).astype(np.int64)
        high = np.clip(np.ceil(self.box[:, :2] + self.box[:, 2:] - _NEAR), -_FAR, _FAR).astype(np.int64)
        high = np.maximum(high, low + 1)
        clip = np.concatenate([np.maximum(self.clip[:, :2], low), np.minimum(self.clip[:, 2:], high)], axis=1)
        return replace(self, clip=clip)

    def mirror(self, which: npt.ArrayLike) -> Geometry:
        """Mirror the canvases that bool (n, 2) names: left to right, and top to bottom."""
        chosen = np.asarray(which, dtype=np.bool_)[:, None, :]
        frame = self.frame.copy()
        sides = np.where(chosen, frame[:, :, :2], 0)
        frame[:, :, 2] += sides.sum(axis=2)
        frame[:, :, :2] -= 2 * sides
        return replace(self, frame=frame)

    def warp(self, maps: F64, size: I64) -> Geometry:
        """New canvases, each an affine map of the one before.

        Args:
            maps: float64 (n, 2, 3), take pixels of the new canvas to the old one's.
            size: int64 (n, 2), width and height of the new.
        """
        linear = self.matrix[:, :, :2]
        frame = (linear[:, :, :, None] * maps[:, None]).sum(axis=2)
        frame[:, :, 2] += self.frame[:, :, 2]
        frame[:, :, :2] *= size[:, None, :]
        # What is upright ends where its clip does; of what is not, edges alone say where it ends.
        edges = with_sides(self.edges, self._exceeds_clip, lambda: sides_of_clip(self.clip, self.scale))
        edges = np.concatenate([edges, sides_of_canvas(self.matrix, self.size)], axis=1)
        return replace(self, frame=frame, size=size, edges=edges)

    def filled(self, fill: Fill) -> Geometry:
        """The same with another colour outside."""
        return replace(self, fill=np.tile(np.array(fill, dtype=np.uint8), (len(self.size), 1)))

    def move_points(self, slot: int, points: npt.ArrayLike) -> F64:
        """Where points of the source image are in the output.

        Args:
            slot: number of the image.
            points: float64 (k, 2), x and y in source pixels, anywhere.

        Returns:
            float64 (k, 2), in output pixels; may lie outside of the output. NaN where the map keeps no area.
        """
        return _moved(points, inverse(self.matrix[slot]))

    def points_back(self, slot: int, points: npt.ArrayLike) -> F64:
        """The inverse of ``move_points``: where points of the output are in the source; defined for every map."""
        return _moved(points, self.matrix[slot])

    @cached_property
    def _holds_clip(self) -> Bools:
        """Whether the clip ends on the canvas, so that nothing of the image lies beyond."""
        low, high = self.box[:, :2], self.box[:, :2] + self.box[:, 2:]
        inside = (self.clip[:, :2] >= low - _NEAR) & (self.clip[:, 2:] <= high + _NEAR)
        holds: Bools = self.upright & inside.all(axis=1)
        return holds

    @cached_property
    def _exceeds_clip(self) -> Bools:
        """Whether an upright canvas shows what is outside of the clip."""
        low, high = self.box[:, :2], self.box[:, :2] + self.box[:, 2:]
        inside = (self.clip[:, :2] <= low + _NEAR) & (self.clip[:, 2:] >= high - _NEAR)
        exceeds: Bools = self.upright & ~inside.all(axis=1)
        return exceeds


def _moved(points: npt.ArrayLike, matrix: F64) -> F64:
    x, y = np.moveaxis(np.asarray(points, dtype=np.float64), -1, 0)
    return np.stack([row[0] * x + row[1] * y + row[2] for row in matrix], axis=-1)


class Draws:
    """Random numbers for the images of a batch, each a function of (seed, epoch, record id, position) only.

    Args:
        seed: the user's.
        epoch: counts from 0.
        ids: (n,), the records' ids.
    """

    def __init__(self, seed: int, epoch: int, ids: npt.ArrayLike) -> None:
        words = np.asarray(ids).astype(np.uint64)
        self._keys = rng.keys(rng.key(rng.AUGMENT, seed, epoch), words)[:, None]
        self._position = 0

    def unit(self, count: int) -> F64:
        """The next ``count`` uniform numbers in [0, 1) of every image: float64 (n, count)."""
        counters = np.arange(self._position, self._position + count, dtype=np.uint64)
        self._position += count
        return rng.unit(self._keys, counters)


class Transform(Protocol):
    """One step on the geometry of a batch. One that pads has its colour as ``fill`` besides."""

    @property
    def fixes_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it depends on the size of the input."""

    def __call__(self, geometry: Geometry, draws: Draws) -> Geometry:
        """The geometry after this step; takes as many draws for one image as for any other."""


def compose(transforms: Sequence[Transform], geometry: Geometry, draws: Draws) -> Geometry:
    """Apply transforms in order; still one resampling per image.

    Raises:
        UsageError: two transforms give different fills, or a crop does not fit into an image.
    """
    common_fill(transforms)
    for transform in transforms:
        geometry = transform(geometry, draws)
    return geometry


def common_fill(transforms: Sequence[Transform]) -> Fill:
    """The one colour that all transforms of a list give, black where none does.

    Raises:
        UsageError: two give different ones; an image is resampled once, so it has one colour outside.
    """
    given: list[tuple[str, Fill]] = [
        (type(transform).__name__, transform.fill) for transform in transforms if hasattr(transform, "fill")
    ]
    for name, fill in given[1:]:
        if fill != given[0][1]:
            raise UsageError(
                f"{given[0][0]} has the fill {given[0][1]} and {name} {fill}; give all of a list the same one"
            )
    return given[0][1] if given else (0, 0, 0)


def output_size(transforms: Sequence[Transform]) -> tuple[int, int] | None:
    """(height, width) of every output where the list fixes it for all images, otherwise None."""
    for i in reversed(range(len(transforms))):
        if getattr(transforms[i], "varies_size", False):
            return None
        fixed = transforms[i].fixes_size
        if fixed is not None:
            # What follows depends on the size alone, so one image shows where it leads.
            image = Geometry.of_images([fixed[1]], [fixed[0]])
            width, height = compose(transforms[i + 1 :], image, Draws(0, 0, [0])).size[0]
            return int(height), int(width)
    return None
