"""The box of an image that all its views reach together: it is decoded once, at the scale that all allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from picstore.arrays import I64
from picstore.train.transforms.geometry import Geometry

_FAR = 1 << 40  # pixels; beyond every image


def joint_reach(geometries: Sequence[Geometry], n: int) -> I64:
    """The box around what all views of each of n images reach: int64 (n, 4), as ``Geometry.reach``."""
    if len(geometries) == 1 and len(geometries[0].size) == n:
        return geometries[0].reach
    reach = np.concatenate([geometry.reach.reshape(-1, n, 4) for geometry in geometries])
    empty = np.logical_or.reduce(reach[:, :, :2] >= reach[:, :, 2:], axis=2, keepdims=True)
    low = np.where(empty, _FAR, reach[:, :, :2]).min(axis=0)
    high = np.where(empty, -_FAR, reach[:, :, 2:]).max(axis=0)
    return np.concatenate([low, high], axis=1)


def joint_factors(geometries: Sequence[Geometry], n: int, gap: float | None) -> I64:
    """The largest division of sides by decoding that all views of each of n images allow: int64 (n,)."""
    if gap is None:
        return np.ones(n, dtype=np.int64)
    factors: I64 = np.concatenate([each.decode_factors(gap).reshape(-1, n) for each in geometries]).min(axis=0)
    return factors


def align_reach(reach: I64, factors: I64) -> I64:
    """Widen reaches (n, 4) to whole pixels of images whose sides decoding divides by ``factors`` (n,)."""
    if factors.max(initial=1) == 1:
        return reach
    by = factors[:, None]
    return np.concatenate([reach[:, :2] // by * by, -(-reach[:, 2:] // by) * by], axis=1)


def boxes_to_cut(reach: I64, size: I64) -> I64:
    """Boxes to cut for a reach: int64 (n, 4), left, top, right, bottom within images of these sizes, never empty.

    If all output is padding, the reach is empty, and one pixel is decoded.
    """
    low = np.clip(reach[:, :2], 0, size - 1)
    return np.concatenate([low, np.clip(reach[:, 2:], low + 1, size)], axis=1)


def box_of_decoded(box: I64, origin: Sequence[int] | I64, factor: int) -> tuple[int, int, int, int]:
    """The box (4,) of a stored image in its decoded pixels, whose first is the stored image's at ``origin``."""
    left, top, right, bottom = (box - np.tile(np.asarray(origin, np.int64), 2)).tolist()
    return left // factor, top // factor, -(-right // factor), -(-bottom // factor)
