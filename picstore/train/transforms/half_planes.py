"""Edges of images: half-planes a·x + b·y + c ≥ 0, outside of which the output shows its fill.

The sides of a rotated canvas are slanted in the source. Beyond them later transforms must show fill, even where the
source has pixels. The value of a·x + b·y + c is the distance from the edge in pixels of its canvas; pixels within half
a pixel of the edge are blended with the fill.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from picstore.arrays import F64, I64, Bools

_TOLERANCE = 1e-6  # pixels; for rounding


def vector_length(x: F64, y: F64) -> F64:
    """√(x² + y²), exact where one is 0; the rounding of NumPy's hypot depends on the machine."""
    root: F64 = np.sqrt(x * x + y * y)
    return root


def invert_maps(matrix: F64) -> F64:
    """The inverses of affine maps (…, 2, 3); NaN for singular maps."""
    a, b, c, d, e, f = np.moveaxis(matrix.reshape(*matrix.shape[:-2], 6), -1, 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.stack([e, -b, b * f - e * c, -d, a, d * c - a * f], axis=-1) / (a * e - b * d)[..., None]
    finite = np.where(np.isfinite(inverse).all(axis=-1, keepdims=True), inverse, np.nan)
    return finite.reshape(matrix.shape)


def canvas_edges(matrix: F64, size: I64) -> F64:
    """The four sides of canvases of these sizes, by their maps to source pixels: float64 (n, 4, 3)."""
    near = invert_maps(matrix)
    far = -near
    far[:, :, 2] += size
    return np.concatenate([near, far], axis=1)


def clip_edges(clip: I64, scale: F64) -> F64:
    """The four sides of upright rectangles in the source, at source pixels per pixel of canvas: float64 (n, 4, 3)."""
    axes = np.tile(np.eye(2), (len(clip), 1, 1))
    near = np.concatenate([axes, -clip[:, :2, None]], axis=2) / scale[:, :, None]
    far = np.concatenate([-axes, clip[:, 2:, None]], axis=2) / scale[:, :, None]
    return np.concatenate([near, far], axis=1)


def open_edges(n: int, count: int) -> F64:
    """``count`` edges that hide nothing for each of n images: float64 (n, count, 3)."""
    return np.tile(np.array([0.0, 0.0, 1.0]), (n, count, 1))


def append_edges(edges: F64, chosen: Bools, sides: Callable[[], F64]) -> F64:
    """Append ``sides()`` to the edges (n, k, 3) of the chosen images, and four that hide nothing to the others.

    If none is chosen, the edges stay as they are.
    """
    if not chosen.any():
        return edges
    return np.concatenate([edges, np.where(chosen[:, None, None], sides(), open_edges(len(edges), 4))], axis=1)


def edges_on_output(edges: F64, matrix: F64) -> F64:
    """Edges in output coordinates; distances are in the larger of output pixels and pixels of the edge's canvas."""
    if not edges.shape[1]:
        return edges
    full = np.zeros((len(matrix), 3, 3))
    full[:, :2] = matrix
    full[:, 2, 2] = 1
    moved: F64 = (edges[:, :, :, None] * full[:, None]).sum(axis=2)
    return moved / np.maximum(vector_length(moved[:, :, 0], moved[:, :, 1]), 1.0)[:, :, None]


def hides_pixels(edges: F64, size: I64) -> Bools:
    """Whether any pixel of each output lies outside of its edges, of ``edges_on_output``, or on one: bool (n,)."""
    if not edges.shape[1]:
        return np.zeros(len(edges), dtype=np.bool_)
    a, b, c = np.moveaxis(edges, 2, 0)
    least = np.minimum(a * 0.5, a * (size[:, :1] - 0.5)) + np.minimum(b * 0.5, b * (size[:, 1:] - 0.5)) + c
    hidden: Bools = ~(least >= 0.5 - _TOLERANCE).all(axis=1)
    return hidden
