"""Edges: half-planes a·x + b·y + c ≥ 0, outside of which a picture shows its fill.

A crop ends where pixels do, but the sides of a rotated canvas lie aslant in the source, and what later transforms show
beyond them must be fill, though the source has pixels there. The value of a·x + b·y + c is the distance from the edge
in pixels of the canvas whose edge it is; what has less than half a pixel on either side is blended with the fill.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from picstore.arrays import F64, I64, Bools

_NEAR = 1e-6  # pixels: what differs by less is equal but for rounding


def length(x: F64, y: F64) -> F64:
    """√(x² + y²), exact where one is 0; NumPy's hypot may round otherwise on another machine."""
    root: F64 = np.sqrt(x * x + y * y)
    return root


def inverse(matrix: F64) -> F64:
    """The inverse of affine maps (…, 2, 3); NaN where there is none."""
    a, b, c, d, e, f = np.moveaxis(matrix.reshape(*matrix.shape[:-2], 6), -1, 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        turned = np.stack([e, -b, b * f - e * c, -d, a, d * c - a * f], axis=-1) / (a * e - b * d)[..., None]
    known = np.where(np.isfinite(turned).all(axis=-1, keepdims=True), turned, np.nan)
    return known.reshape(matrix.shape)


def sides_of_canvas(matrix: F64, size: I64) -> F64:
    """The four sides of canvases, in source coordinates: float64 (n, 4, 3).

    Args:
        matrix: float64 (n, 2, 3), takes pixels of the canvas to source pixels.
        size: int64 (n, 2), width and height of the canvas.
    """
    near = inverse(matrix)
    far = -near
    far[:, :, 2] += size
    return np.concatenate([near, far], axis=1)


def sides_of_clip(clip: I64, scale: F64) -> F64:
    """The four sides of upright rectangles of the source: float64 (n, 4, 3).

    Args:
        clip: int64 (n, 4), left, top, right, bottom.
        scale: float64 (n, 2), source pixels to a pixel of the canvas, along x and y.
    """
    axes = np.tile(np.eye(2), (len(clip), 1, 1))
    near = np.concatenate([axes, -clip[:, :2, None]], axis=2) / scale[:, :, None]
    far = np.concatenate([-axes, clip[:, 2:, None]], axis=2) / scale[:, :, None]
    return np.concatenate([near, far], axis=1)


def none_of(n: int, count: int) -> F64:
    """``count`` edges for each of n images that hide nothing: float64 (n, count, 3)."""
    return np.tile(np.array([0.0, 0.0, 1.0]), (n, count, 1))


def with_sides(edges: F64, chosen: Bools, sides: Callable[[], F64]) -> F64:
    """Edges (n, k, 3), and where bool (n,) says so four more; the others get as many that hide nothing.

    Args:
        sides: makes them; not called where none is chosen, and the edges stay as they are.
    """
    if not chosen.any():
        return edges
    return np.concatenate([edges, np.where(chosen[:, None, None], sides(), none_of(len(edges), 4))], axis=1)


def on_output(edges: F64, matrix: F64) -> F64:
    """The same edges in output coordinates, at distances in the larger of output pixels and the canvas's."""
    full = np.zeros((len(matrix), 3, 3))
    full[:, :2] = matrix
    full[:, 2, 2] = 1
    moved: F64 = (edges[:, :, :, None] * full[:, None]).sum(axis=2)
    return moved / np.maximum(length(moved[:, :, 0], moved[:, :, 1]), 1.0)[:, :, None]


def bound(edges: F64, size: I64) -> Bools:
    """Whether any pixel of an output of this size is outside of its edges or on one; ``edges`` as of ``on_output``."""
    a, b, c = np.moveaxis(edges, 2, 0)
    least = np.minimum(a * 0.5, a * (size[:, :1] - 0.5)) + np.minimum(b * 0.5, b * (size[:, 1:] - 0.5)) + c
    hidden: Bools = ~(least >= 0.5 - _NEAR).all(axis=1)
    return hidden
