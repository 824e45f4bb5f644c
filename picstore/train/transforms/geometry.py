"""Geometry of a batch: a list of geometric transforms becomes one affine map, and so one resampling, per image.

A ``Geometry`` holds, for each image of a batch, the part of the source that becomes the output. Each transform
(``crops.py``, ``affine.py``) maps one ``Geometry`` to the next, for the whole batch at once. ``train/cpu/render.py``,
``train/cpu/fused.py`` and ``train/cuda/augment.py`` compute the pixels.

Coordinates are continuous: pixel i covers [i, i + 1), x to the right, y down. A *canvas* is the image between two
transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64, U8, Bools
from picstore.jpeg.reducing import decode_factors
from picstore.kernels.filters import GRID, HALF_WIDTHS, NEAREST
from picstore.train.transforms.arguments import Fill
from picstore.train.transforms.cached_property import cached_property
from picstore.train.transforms.padding_and_edges import (
    CONSTANT,
    append_edges,
    canvas_edges,
    clip_edges,
    edges_on_output,
    hides_pixels,
    invert_maps,
    mirrored_reach,
    open_edges,
    vector_length,
)

_TOLERANCE = 1e-6  # pixels, for rounding errors
_LIMIT = float(1 << 28)  # limit in pixels to which coordinates are clipped to fit into integers; no image is as large


@dataclass(frozen=True)
class Geometry:
    """Map between source pixels and output pixels, for each of n images.

    Attributes:
        source_size: int64 (n, 2), widths and heights of the images.
        frame: float64 (n, 2, 3), the parallelogram of the source that becomes the output. Its columns, in source
            pixels: vector of the upper side, vector of the left side, left top corner. It may reach beyond the image.
        clip: int64 (n, 4), left, top, right, bottom of the source pixels that the filter may use; those outside of the
            image are ``fill``.
        size: int64 (n, 2), widths and heights of the outputs after the transforms so far.
        edges: float64 (n, k, 3), coefficients a, b, c of k half-planes a·x + b·y + c ≥ 0 per image, x and y in source
            pixels; outside of any half-plane the output is ``fill``. a·x + b·y + c is the distance from the edge in
            pixels of the canvas that the edge bounds; over one such pixel, the output is blended with the fill.
        interpolation: int64 (n,), code in ``kernels/filters.py`` of the transforms' widest filter.
        antialias: bool (n,), whether the filter is widened if it minifies; the nearest filter never is.
        fill: uint8 (n, 3), the color outside of the image.
        border: int64 (n,), padding mode of ``padding_and_edges.py`` for pixels between the image and the edges.
        boxes: float64 (n, m, 4), boxes of objects in source pixels, padded with NaN; None if no transform needs boxes.
        kept: bool (n, m), False for objects that a transform has dropped; None if ``boxes`` is None.
    """

    source_size: I64
    frame: F64
    clip: I64
    size: I64
    edges: F64
    interpolation: I64
    antialias: Bools
    fill: U8
    border: I64
    boxes: F64 | None = None
    kept: Bools | None = None

    @classmethod
    def identity(cls, widths: npt.ArrayLike, heights: npt.ArrayLike, boxes: F64 | None = None) -> Geometry:
        """Return the identity map of images, given widths and heights in pixels, (n,) each, and objects' ``boxes``."""
        size = np.stack([np.asarray(widths, dtype=np.int64), np.asarray(heights, dtype=np.int64)], axis=1)
        n = len(size)
        frame = np.zeros((n, 2, 3))
        frame[:, 0, 0], frame[:, 1, 1] = size.T
        clip = np.concatenate([np.zeros_like(size), size], axis=1)
        fill = np.zeros((n, 3), dtype=np.uint8)
        nearest, antialias = np.full(n, NEAREST, dtype=np.int64), np.ones(n, dtype=np.bool_)
        constant = np.full(n, CONSTANT, dtype=np.int64)
        kept = None if boxes is None else np.ones(boxes.shape[:2], dtype=np.bool_)
        return cls(size, frame, clip, size, np.empty((n, 0, 3)), nearest, antialias, fill, constant, boxes, kept)

    @classmethod
    def of_crops(
        cls, source_size: I64, frame: F64, clip: I64, box: F64, size: I64, *, interpolation: int, antialias: bool
    ) -> Geometry:
        """Return the geometry of images cropped at whole pixels, perhaps mirrored, and resized to ``size``.

        The properties ``box``, ``reach`` and ``upright`` are set too, because computing them takes 60 NumPy operations.
        """
        n = len(size)
        made = cls(
            source_size,
            frame,
            clip,
            size,
            np.empty((n, 0, 3)),
            np.full(n, max(NEAREST, interpolation), dtype=np.int64),
            np.full(n, antialias, dtype=np.bool_),
            np.zeros((n, 3), dtype=np.uint8),
            np.full(n, CONSTANT, dtype=np.int64),
        )
        known = {"box": box, "grid_box": box, "reach": clip, "upright": np.ones(n, dtype=np.bool_)}
        made.__dict__.update(known)
        return made

    @classmethod
    def concatenate(cls, geometries: Sequence[Geometry], order: npt.ArrayLike) -> Geometry:
        """Concatenate geometries of different images; image i of the result is image order[i] of the concatenation."""
        chosen = np.asarray(order, dtype=np.int64)
        most = max(each.edges.shape[1] for each in geometries)
        padding = [open_edges(len(each.size), most - each.edges.shape[1]) for each in geometries]
        edges = [np.concatenate([each.edges, more], axis=1) for each, more in zip(geometries, padding, strict=True)]
        others = {
            name: np.concatenate([getattr(each, name) for each in geometries])[chosen]
            for name in ("source_size", "frame", "clip", "size", "interpolation", "antialias", "fill", "border")
        }
        return cls(edges=np.concatenate(edges)[chosen], **others, **_concatenate_objects(geometries, chosen))

    @cached_property
    def matrix(self) -> F64:
        """float64 (n, 2, 3): map of (x, y, 1) in output pixels to source pixels."""
        sides = self.frame[:, :, :2] / self.size[:, None, :]
        return np.concatenate([sides, self.frame[:, :, 2:]], axis=2)

    @cached_property
    def upright(self) -> Bools:
        """Bool (n,): whether rows of source pixels stay horizontal; if so, ``box`` and ``flip`` describe ``frame``."""
        upright: Bools = (self.frame[:, 0, 1] == 0) & (self.frame[:, 1, 0] == 0)
        return upright

    @cached_property
    def box(self) -> F64:
        """float64 (n, 4): left, top, width, height of the upright box around the frame, in source pixels."""
        sides, corner = self.frame[:, :, :2], self.frame[:, :, 2]
        # Add the extents of both sides by ``+``, because ``sum`` takes 10 µs for an axis of length 2.
        extent, negative = np.abs(sides), np.minimum(sides, 0)
        start = corner + (negative[:, :, 0] + negative[:, :, 1])
        return np.concatenate([start, extent[:, :, 0] + extent[:, :, 1]], axis=1)

    @cached_property
    def grid_box(self) -> F64:
        """``box``, rounded to multiples of 1 / ``GRID`` pixels, so that sums with whole pixels are exact."""
        return _on_grid(self.box)

    @cached_property
    def grid_matrix(self) -> F64:
        """``matrix``, rounded to multiples of 1 / ``GRID`` pixels, so that sums with whole pixels are exact."""
        return _on_grid(self.matrix)

    @cached_property
    def flip(self) -> Bools:
        """Bool (n, 2): whether an upright output is mirrored left to right, and top to bottom."""
        return self.frame[:, (0, 1), (0, 1)] < 0

    @cached_property
    def scale(self) -> F64:
        """float64 (n, 2): number of source pixels per output pixel, along the source's x and y axes."""
        return vector_length(self.matrix[:, :, 0], self.matrix[:, :, 1])

    @cached_property
    def shrink(self) -> F64:
        """float64 (n,): source pixels per output pixel, the least of four: along x and y of source and output."""
        along = vector_length(self.matrix[:, 0, :2], self.matrix[:, 1, :2])
        shrink: F64 = np.minimum(self.scale, along).min(axis=1)
        return shrink

    @cached_property
    def output_edges(self) -> F64:
        """``edges``, k half-planes for each of n images, with x and y in output pixels: float64 (n, k, 3)."""
        return edges_on_output(self.edges, self.matrix)

    @cached_property
    def shows_edges(self) -> Bools:
        """Bool (n,): whether any of ``output_edges`` hides a pixel of the output, at least in part."""
        return hides_pixels(self.output_edges, self.size)

    @cached_property
    def minifies(self) -> Bools:
        """Bool (n,): whether the filter is widened where the output is smaller than the source (antialiasing)."""
        minifies: Bools = self.antialias & (self.interpolation != NEAREST)
        return minifies

    @cached_property
    def reach(self) -> I64:
        """int64 (n, 4): left, top, right, bottom of the source pixels that the resampling filter can use.

        Other pixels need not be decoded. The reach is empty (right ≤ left or bottom ≤ top) if all output is padding.
        """
        window = self._window
        low, high = np.maximum(window[:, :2], 0), np.minimum(window[:, 2:], self.source_size)
        repeats = (self.border != CONSTANT)[:, None]
        if not repeats.any():
            return np.concatenate([low, high], axis=1)
        mirrored = mirrored_reach(window[:, :2], window[:, 2:], self.source_size)
        return np.concatenate([np.where(repeats, mirrored[0], low), np.where(repeats, mirrored[1], high)], axis=1)

    @cached_property
    def window(self) -> I64:
        """int64 (n, 4): as ``reach``, but also beyond the image if padding repeats the image's border."""
        return np.where((self.border != CONSTANT)[:, None], self._window, self.reach)

    @cached_property
    def _window(self) -> I64:
        """int64 (n, 4): left, top, right, bottom of the pixels that the filter can use, in or outside of the image."""
        widened = np.where(self.minifies[:, None], np.maximum(self.scale, 1.0), 1.0)
        half_width = np.array(HALF_WIDTHS)[self.interpolation, None]
        # A rotated or sheared image is first reduced, then interpolated, so the half-widths of both filters add up.
        steps = np.where(self.upright[:, None] | (widened <= 1), half_width, half_width + np.minimum(half_width, 2.0))
        support = widened * steps
        low = np.clip(np.floor(self.box[:, :2] - support), -_LIMIT, _LIMIT).astype(np.int64)
        high = np.clip(np.ceil(self.box[:, :2] + self.box[:, 2:] + support), -_LIMIT, _LIMIT).astype(np.int64)
        return np.concatenate([np.maximum(low, self.clip[:, :2]), np.minimum(high, self.clip[:, 2:])], axis=1)

    def decode_factors(self, gap: float | None) -> I64:
        """Return the factor 1, 2, 4 or 8 by which decoding may divide each image's sides, int64 (n,).

        ``gap`` is the loader's ``reducing_gap``. The factor is 1 for an image that is resampled without antialiasing or
        with repeated border pixels, because decoding at a reduced size averages pixels.
        """
        return decode_factors(np.where(self.minifies & (self.border == CONSTANT), self.shrink, 1.0), gap)

    def crop(self, corner: npt.ArrayLike, size: npt.ArrayLike) -> Geometry:
        """Crop canvases to boxes: left top corners and sizes, int64 (n, 2) each; ``fill`` shows beyond a canvas."""
        corner, size = np.asarray(corner, dtype=np.int64), np.asarray(size, dtype=np.int64)
        linear = self.matrix[:, :, :2]
        frame = np.empty_like(self.frame)
        frame[:, :, :2] = linear * size[:, None, :]
        frame[:, :, 2] = self.frame[:, :, 2] + linear[:, :, 0] * corner[:, :1] + linear[:, :, 1] * corner[:, 1:]
        beyond = ((corner < 0) | (corner + size > self.size)).any(axis=1)
        # ``ends``: whether image or padding goes on outside of the canvas, so that a crop beyond it needs edges.
        ends = ~self._holds_clip | (self.border != CONSTANT)
        edges = append_edges(self.edges, beyond & ends, lambda: canvas_edges(self.matrix, self.size))
        cropped = replace(self, frame=frame, size=size, edges=edges)
        # Limit ``clip`` to the crop and its padding, so that a later resize uses no other pixel; but not if the canvas
        # was resized before, because the pixels of the crop were then made of pixels outside of the crop too.
        start = cropped.box[:, :2]
        scale = np.abs(linear[:, (0, 1), (0, 1)])
        exact = self.upright[:, None] & (scale == 1) & (start == np.floor(start))
        low, high = self.clip[:, :2], self.clip[:, 2:]
        new_low = np.clip(start, -_LIMIT, _LIMIT).astype(np.int64)
        new_high = new_low + size
        new_low = np.where(low <= 0, new_low, np.maximum(low, new_low))
        new_high = np.where(high >= self.source_size, new_high, np.minimum(high, new_high))
        clip = np.concatenate([np.where(exact, new_low, low), np.where(exact, new_high, high)], axis=1)
        return replace(cropped, clip=clip)

    def clip_to_canvas(self) -> Geometry:
        """Limit the clip to source pixels wholly or partly on the canvas, so that the filter uses no others."""
        low = np.clip(np.floor(self.box[:, :2] + _TOLERANCE), -_LIMIT, _LIMIT).astype(np.int64)
        high = np.clip(np.ceil(self.box[:, :2] + self.box[:, 2:] - _TOLERANCE), -_LIMIT, _LIMIT).astype(np.int64)
        high = np.maximum(high, low + 1)
        clip = np.concatenate([np.maximum(self.clip[:, :2], low), np.minimum(self.clip[:, 2:], high)], axis=1)
        return replace(self, clip=clip)

    def mirror(self, which: npt.ArrayLike) -> Geometry:
        """Mirror canvas i left to right if ``which[i, 0]``, and top to bottom if ``which[i, 1]``: bool (n, 2)."""
        chosen = np.asarray(which, dtype=np.bool_)[:, None, :]
        frame = self.frame.copy()
        sides = np.where(chosen, frame[:, :, :2], 0)
        frame[:, :, 2] += sides.sum(axis=2)
        frame[:, :, :2] -= 2 * sides
        return replace(self, frame=frame)

    def warp(self, maps: F64, size: I64) -> Geometry:
        """Map canvases to new canvases of ``size``; ``maps`` is float64 (n, 2, 3), from new pixels to old pixels."""
        linear = self.matrix[:, :, :2]
        frame = (linear[:, :, :, None] * maps[:, None]).sum(axis=2)
        frame[:, :, 2] += self.frame[:, :, 2]
        frame[:, :, :2] *= size[:, None, :]
        # Outside of the clip, upright resampling shows the fill, but a warp repeats the clip's border pixels. A warp
        # shows the fill outside of edges (half-planes), so the clip's sides become edges.
        edges = append_edges(self.edges, self._exceeds_clip, lambda: clip_edges(self.clip, self.scale))
        edges = np.concatenate([edges, canvas_edges(self.matrix, self.size)], axis=1)
        return replace(self, frame=frame, size=size, edges=edges)

    def resample_by(self, interpolation: I64, antialias: bool = True) -> Geometry:
        """Return a copy with the wider of two filters, its own and ``interpolation``, (n,); antialiased if both are."""
        widest = np.maximum(self.interpolation, interpolation)
        return replace(self, interpolation=widest, antialias=self.antialias & antialias)

    def with_fill(self, fill: Fill) -> Geometry:
        return replace(self, fill=np.tile(np.array(fill, dtype=np.uint8), (len(self.size), 1)))

    def with_border(self, border: int) -> Geometry:
        return replace(self, border=np.full(len(self.size), border, dtype=np.int64))

    def points_to_output(self, slot: int, points: npt.ArrayLike) -> F64:
        """Map k points (k, 2), x and y in source pixels of the image ``slot`` (index), to pixels of its output.

        Returns:
            float64 (k, 2); NaN if the image's map is singular.
        """
        x, y = np.moveaxis(np.asarray(points, dtype=np.float64), -1, 0)
        return np.stack([row[0] * x + row[1] * y + row[2] for row in invert_maps(self.matrix[slot])], axis=-1)

    def objects_on_canvas(self) -> tuple[F64, Bools]:
        """Return upright boxes around the objects on the canvas, float64 (n, m, 4), and whether each object is kept."""
        if self.boxes is None or self.kept is None:
            return np.empty((len(self.size), 0, 4)), np.empty((len(self.size), 0), dtype=np.bool_)
        corners = self.boxes[:, :, [[0, 1], [2, 1], [2, 3], [0, 3]]]
        inverse = invert_maps(self.matrix)[:, None, None]
        moved = (inverse[..., :2] * corners[..., None, :]).sum(axis=4) + inverse[..., 2]
        return np.concatenate([moved.min(axis=2), moved.max(axis=2)], axis=2), self.kept

    def corners(self, row: int) -> F64:
        """Return the points of source ``row`` that become the output's corners, clockwise from its left top: (4, 2)."""
        across, down, corner = self.frame[row].T
        return np.stack([corner, corner + across, corner + across + down, corner + down])

    def describe(self, row: int) -> list[str]:
        """Describe in words which part of an image was cut out, and how the part was turned or mirrored."""
        if not self.upright[row]:
            (ax, ay), (bx, by) = self.frame[row, :, 0], self.frame[row, :, 1]
            sides = f"{np.hypot(ax, ay):.0f} × {np.hypot(bx, by):.0f}"
            turned = f"turned by {np.degrees(np.arctan2(ay, ax)):.0f}°"
            return [sides, turned, *(["mirrored"] if ax * by - ay * bx < 0 else [])]
        left, top, across, down = self.box[row].tolist()
        flips = zip(self.flip[row].tolist(), ("mirrored", "upside down"), strict=True)
        cut = f"{across:.0f} × {down:.0f} at {left:.0f}, {top:.0f}"
        return [cut, *(name for flipped, name in flips if flipped)]

    @cached_property
    def _holds_clip(self) -> Bools:
        """Bool (n,): whether the canvas is upright and holds all of ``clip``, the pixels that the filter may use."""
        low, high = self.box[:, :2], self.box[:, :2] + self.box[:, 2:]
        inside = (self.clip[:, :2] >= low - _TOLERANCE) & (self.clip[:, 2:] <= high + _TOLERANCE)
        return self.upright & inside.all(axis=1)

    @cached_property
    def _exceeds_clip(self) -> Bools:
        """Bool (n,): whether the canvas is upright and reaches beyond ``clip``, the pixels that the filter may use."""
        low, high = self.box[:, :2], self.box[:, :2] + self.box[:, 2:]
        inside = (self.clip[:, :2] <= low + _TOLERANCE) & (self.clip[:, 2:] >= high - _TOLERANCE)
        return self.upright & ~inside.all(axis=1)


def _on_grid(numbers: F64) -> F64:
    # Ignore overflow, because the resampling rejects numbers that are not finite.
    with np.errstate(over="ignore"):
        rounded: F64 = np.rint(numbers * GRID) / GRID
    return rounded


def _concatenate_objects(geometries: Sequence[Geometry], chosen: I64) -> dict[str, Any]:
    held = [(each.boxes, each.kept, len(each.size)) for each in geometries]
    most = max((boxes.shape[1] for boxes, _, _ in held if boxes is not None), default=None)
    if most is None:
        return {}
    all_boxes, all_kept = [], []
    for boxes, kept, n in held:
        padded, marks = np.full((n, most, 4), np.nan), np.ones((n, most), dtype=np.bool_)
        if boxes is not None and kept is not None:
            padded[:, : boxes.shape[1]], marks[:, : boxes.shape[1]] = boxes, kept
        all_boxes.append(padded)
        all_kept.append(marks)
    return {"boxes": np.concatenate(all_boxes)[chosen], "kept": np.concatenate(all_kept)[chosen]}
