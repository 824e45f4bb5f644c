"""Pixels that an output shows beyond the edges of its image: fill, or repeated pixels of the image.

An edge is a half-plane a·x + b·y + c ≥ 0, outside of which the output shows fill. The sides of a rotated canvas are
slanted in the source. Beyond these sides later transforms must show fill, even if the source has pixels there. The
value of a·x + b·y + c is the distance from the edge in pixels of the canvas; pixels within half a pixel of the edge are
blended with the fill.

Padding modes "edge", "reflect" and "symmetric" repeat pixels of the image, as in torchvision. The image is read and
decoded as usual. Missing pixels are copied from inside before the resampling, as if the stored image were larger.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from picstore.arrays import F64, I64, Bools

_TOLERANCE = 1e-6  # pixels, for rounding errors
CONSTANT, EDGE, REFLECT, SYMMETRIC = range(4)
BORDERS = {"constant": CONSTANT, "edge": EDGE, "reflect": REFLECT, "symmetric": SYMMETRIC}


def border_indices(low: int, high: int, extent: int, border: int) -> I64:
    """Return the index of the pixel that a padded line shows at each position from ``low`` to ``high`` − 1.

    The line has ``extent`` pixels, from position 0. REFLECT mirrors at the middle of the first and last pixel,
    SYMMETRIC at the pixel's outer edge.
    """
    indices = np.arange(low, high, dtype=np.int64)
    if border == EDGE or extent == 1:
        return np.clip(indices, 0, extent - 1)
    period = 2 * extent - 2 * (border == REFLECT)
    indices %= period
    return np.where(indices < extent, indices, 2 * extent - 1 - (border == REFLECT) - indices)


def mirrored_reach(low: I64, high: I64, extent: I64) -> tuple[I64, I64]:
    """Return start and end of a range that has all pixels shown at ``low`` … ``high`` − 1 by any padding mode."""
    first = np.where(high > extent, np.minimum(low, 2 * extent - high - 1), low)
    last = np.where(low < 0, np.maximum(high, 1 - low), high)
    return np.clip(first, 0, extent - 1), np.clip(last, 1, extent)


def vector_length(x: F64, y: F64) -> F64:
    """Return √(x² + y²), exact if x or y is 0; unlike NumPy's hypot, its rounding is the same on every machine."""
    return np.sqrt(x * x + y * y)


def invert_maps(matrix: F64) -> F64:
    """Return the inverses of affine maps (…, 2, 3); NaN for maps without an inverse."""
    a, b, c, d, e, f = np.moveaxis(matrix.reshape(*matrix.shape[:-2], 6), -1, 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.stack([e, -b, b * f - e * c, -d, a, d * c - a * f], axis=-1) / (a * e - b * d)[..., None]
    finite = np.where(np.isfinite(inverse).all(axis=-1, keepdims=True), inverse, np.nan)
    return finite.reshape(matrix.shape)


def canvas_edges(matrix: F64, size: I64) -> F64:
    """Return the 4 sides of n canvases as ``Geometry.edges`` (half-planes); ``matrix`` maps canvas to source pixels."""
    near = invert_maps(matrix)
    far = -near
    far[:, :, 2] += size
    return np.concatenate([near, far], axis=1)


def clip_edges(clip: I64, scale: F64) -> F64:
    """Return the 4 sides of n clips as ``Geometry.edges`` (half-planes); ``scale``: source pixels per canvas pixel."""
    axes = np.tile(np.eye(2), (len(clip), 1, 1))
    near = np.concatenate([axes, -clip[:, :2, None]], axis=2) / scale[:, :, None]
    far = np.concatenate([-axes, clip[:, 2:, None]], axis=2) / scale[:, :, None]
    return np.concatenate([near, far], axis=1)


def open_edges(n: int, count: int) -> F64:
    """Return ``count`` half-planes for each of ``n`` images, float64 (n, count, 3); each of them holds every pixel."""
    return np.tile(np.array([0.0, 0.0, 1.0]), (n, count, 1))


def append_edges(edges: F64, chosen: Bools, sides: Callable[[], F64]) -> F64:
    """Append the half-planes ``sides()``, (n, 4, 3), to the ``edges``, (n, k, 3), of images with ``chosen``, (n,).

    Images not chosen get half-planes that hide nothing. If no image is chosen, return ``edges`` unchanged.
    """
    if not chosen.any():
        return edges
    return np.concatenate([edges, np.where(chosen[:, None, None], sides(), open_edges(len(edges), 4))], axis=1)


def edges_on_output(edges: F64, matrix: F64) -> F64:
    """Convert ``Geometry.edges``, half-planes a·x + b·y + c ≥ 0, from source pixels to output pixels.

    In the result, the unit of the distance a·x + b·y + c is a pixel of the canvas that the edge bounds, or an output
    pixel if that is larger. Over one unit, the output is blended with the fill.
    """
    if not edges.shape[1]:
        return edges
    full = np.zeros((len(matrix), 3, 3))
    full[:, :2] = matrix
    full[:, 2, 2] = 1
    moved: F64 = (edges[:, :, :, None] * full[:, None]).sum(axis=2)
    return moved / np.maximum(vector_length(moved[:, :, 0], moved[:, :, 1]), 1.0)[:, :, None]


def hides_pixels(edges: F64, size: I64) -> Bools:
    """Return whether any of an output's edges (half-planes) hides any of its pixels, at least in part: bool (n,)."""
    if not edges.shape[1]:
        return np.zeros(len(edges), dtype=np.bool_)
    a, b, c = np.moveaxis(edges, 2, 0)
    least = np.minimum(a * 0.5, a * (size[:, :1] - 0.5)) + np.minimum(b * 0.5, b * (size[:, 1:] - 0.5)) + c
    hidden: Bools = ~(least >= 0.5 - _TOLERANCE).all(axis=1)
    return hidden
