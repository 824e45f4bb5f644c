"""Padding by pixels of the image itself: torchvision's padding modes "edge", "reflect" and "symmetric".

An image that is padded so is read and decoded as usual. Where its output reaches beyond it, the pixels that are missing
are copied from inside before the resampling, as if the stored image were larger.
"""

from __future__ import annotations

import numpy as np

from picstore.arrays import I64

CONSTANT, EDGE, REFLECT, SYMMETRIC = range(4)
BORDERS = {"constant": CONSTANT, "edge": EDGE, "reflect": REFLECT, "symmetric": SYMMETRIC}


def border_indices(low: int, high: int, extent: int, border: int) -> I64:
    """Pixels of a line of ``extent`` pixels that stand for ``low`` … ``high`` − 1, some of them beyond it.

    REFLECT mirrors at the middle of the last pixel, SYMMETRIC at its outer edge.
    """
    indices = np.arange(low, high, dtype=np.int64)
    if border == EDGE or extent == 1:
        return np.clip(indices, 0, extent - 1)
    period = 2 * extent - 2 * (border == REFLECT)
    indices %= period
    return np.where(indices < extent, indices, 2 * extent - 1 - (border == REFLECT) - indices)


def mirrored_reach(low: I64, high: I64, extent: I64) -> tuple[I64, I64]:
    """Stretches of lines that hold all pixels of ``border_indices``, for any border."""
    first = np.where(high > extent, np.minimum(low, 2 * extent - high - 1), low)
    last = np.where(low < 0, np.maximum(high, 1 - low), high)
    return np.clip(first, 0, extent - 1), np.clip(last, 1, extent)
