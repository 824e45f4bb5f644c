"""What each output of a batch shows of which pixels, in numbers for the kernels: all of ``train/render.py`` at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.errors import UsageError
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.half_planes import open_edges, vector_length

_FARTHEST = 1 << 24  # pixels; bounds every loop, and keeps positions far from what an integer holds
_NEAR = 1e-6  # what differs by less is the same but for rounding


@dataclass(frozen=True, eq=False)
class Views:
    """How n outputs come from n sources; see ``row.py`` for the units.

    Attributes:
        planes: int64 (n, 2), addresses of the sources, and bytes from one plane to the next.
        source: int64 (n, 2), their widths and heights.
        clip: int64 (n, 4), left, top, right, bottom.
        turned: bool (n,).
        flip: bool (n, 2).
        taps: int64 (n, 2).
        map: float64 (n, 6).
        fill: int64 (n, 3).
        size: int64 (n, 2), of the outputs.
        edges: float64 (n, k, 3), in output pixels.
        bounded: bool (n,), whether they hide anything.
    """

    planes: I64
    source: I64
    clip: I64
    turned: Bools
    flip: Bools
    taps: I64
    map: F64
    fill: I64
    size: I64
    edges: F64
    bounded: Bools

    @classmethod
    def of_boxes(cls, planes: I64, source: I64, box: F64, clip: I64, size: I64, *, antialias: Bools) -> Views:
        """Upright ones without flips, fill or edges.

        Args:
            box: float64 (n, 4), left, top, width, height in source pixels.
            antialias: bool (n,).
        """
        n = len(size)
        scale = box[:, 2:] / size
        support = np.where(antialias[:, None], np.maximum(scale, 1.0), 1.0)
        # The filter is twice the support wide. A thousandth of a pixel, lost or shown by rounding, has no weight.
        visible = np.maximum(clip[:, 2:] - clip[:, :2], 0)
        taps = np.minimum(np.ceil(2 * support - 1e-3), visible).astype(np.int64)
        numbers = np.concatenate([box[:, :2], scale, support], axis=1)
        never = np.zeros(n, dtype=np.bool_)
        flip, fill = np.zeros((n, 2), np.bool_), np.zeros((n, 3), np.int64)
        return cls(planes, source, clip, never, flip, taps, numbers, fill, size, open_edges(n, 0), never)


def views_of(geometry: Geometry, planes: I64, source: I64, origins: I64, factors: I64) -> Views:
    """What a geometry makes of decoded pixels.

    Args:
        geometry: of n images.
        planes, source: see ``Views``.
        origins: int64 (n, 2), left and top of what was decoded, in source pixels.
        factors: int64 (n,), by how much smaller it was decoded.

    Raises:
        UsageError: the geometry is not finite, or reaches too far away.
    """
    by = factors[:, None]
    clip = _clip_in(geometry.clip, origins, factors)
    box = geometry.box.copy()
    box[:, :2] -= origins
    box /= by
    matrix = geometry.matrix.copy()
    matrix[:, :, 2] -= origins
    matrix /= by[:, :, None]
    _check(box, matrix, clip, geometry.size)
    views = Views.of_boxes(planes, source, box, clip, geometry.size, antialias=geometry.antialias)
    # Where the clip is empty nothing is seen of the source, which an upright view says by itself.
    turned = ~geometry.upright & (clip[:, :2] < clip[:, 2:]).all(axis=1)
    return replace(
        views,
        turned=turned,
        map=np.where(turned[:, None], matrix.reshape(-1, 6), views.map),
        flip=geometry.flip,
        fill=geometry.fill.astype(np.int64),
        edges=geometry.output_edges,
        bounded=geometry.shows_edges,
    )


def made_smaller(views: Views, geometry: Geometry, origins: I64, factors: I64) -> tuple[I64, Views, Views]:
    """What must be antialiased before it is turned: it is first resampled to the scale of the output.

    Returns:
        int64 (k,), which of the views; the views that make them smaller, outputs side by side; and all views as they
        look upon those, whose ``planes`` are still to be set.
    """
    larger = (geometry.scale > factors[:, None] * (1 + _NEAR)).any(axis=1)
    chosen = views.turned & geometry.antialias & larger
    reach = _clip_in(geometry.reach, origins, factors)
    low, high = np.maximum(reach[:, :2], 0), np.minimum(reach[:, 2:], views.source)
    which = np.flatnonzero(chosen & (low < high).all(axis=1))
    low, extent = low[which], (high - low)[which]
    matrix = views.map[which].reshape(-1, 2, 3)
    scale = np.maximum(vector_length(matrix[:, :, 0], matrix[:, :, 1]), 1.0)
    size = np.maximum(np.ceil(extent / scale - _NEAR), 1).astype(np.int64)
    box = np.concatenate([low, extent], axis=1)
    clip = np.concatenate([low, low + extent], axis=1)
    smaller = Views.of_boxes(
        views.planes[which], views.source[which], box.astype(np.float64), clip, size, antialias=chosen[which]
    )
    scale = extent / size
    matrix = matrix.copy()
    matrix[:, :, 2] -= low
    matrix /= scale[:, :, None]
    # Where the clip ends beyond what was resampled, it ends beyond the image, or nothing comes near its end.
    left_top = np.floor((views.clip[which, :2] - low) / scale)
    right_bottom = np.ceil((views.clip[which, 2:] - low) / scale)
    onto = {name: getattr(views, name).copy() for name in ("source", "clip", "map")}
    onto["source"][which], onto["map"][which] = size, matrix.reshape(-1, 6)
    onto["clip"][which] = np.concatenate([left_top, right_bottom], axis=1).astype(np.int64)
    return which, smaller, replace(views, **onto)


def _clip_in(clip: I64, origins: I64, factors: I64) -> I64:
    """Rectangles of source pixels in pixels of what was decoded, rounded outwards."""
    clip = clip - np.tile(origins, 2)
    by = factors[:, None]
    return np.concatenate([clip[:, :2] // by, -(-clip[:, 2:] // by)], axis=1)


def _check(box: F64, matrix: F64, clip: I64, size: I64) -> None:
    known = np.isfinite(matrix).all(axis=(1, 2)) & (np.abs(clip) <= _FARTHEST).all(axis=1) & (size > 0).all(axis=1)
    known &= (np.abs(box) <= _FARTHEST).all(axis=1) & (box[:, 2:] > 0).all(axis=1)
    if not known.all():
        wrong = int(np.flatnonzero(~known)[0])
        raise UsageError(
            f"image {wrong} is to show {box[wrong].tolist()} (left, top, width, height) within {clip[wrong].tolist()}, "
            f"which is empty, or not within {_FARTHEST} pixels of it"
        )
