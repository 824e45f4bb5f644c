"""Clipping of polygons by a kernel: an image may have thousands of outlines, and NumPy takes 0.2 ms for each."""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import kernel


@kernel("(float64[:, ::1], float64[:, ::1])")
def clip_polygon(outline, planes):
    """Clip a polygon to half-planes; empty if it lies outside.

    Sutherland and Hodgman, "Reentrant polygon clipping", CACM 17 (1974): pieces of a concave polygon stay joined by
    lines along the edge.

    Args:
        outline: float64 (p, 2), C-contiguous.
        planes: float64 (q, 3), half-planes a·x + b·y + c ≥ 0.

    Returns:
        float64 (r, 2).
    """
    for q in range(planes.shape[0]):
        a, b, c = planes[q, 0], planes[q, 1], planes[q, 2]
        count = outline.shape[0]
        result = np.empty((2 * count, 2), np.float64)
        length = 0
        for k in range(count):
            after = k + 1 if k + 1 < count else 0
            x, y = outline[k, 0], outline[k, 1]
            distance = x * a + y * b + c
            following = outline[after, 0] * a + outline[after, 1] * b + c
            if distance >= 0:
                result[length, 0], result[length, 1] = x, y
                length += 1
            if (distance >= 0) != (following >= 0):
                fraction = distance / (distance - following)
                result[length, 0] = x + fraction * (outline[after, 0] - x)
                result[length, 1] = y + fraction * (outline[after, 1] - y)
                length += 1
        outline = result[:length]
    return outline
