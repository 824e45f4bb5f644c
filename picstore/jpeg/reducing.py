"""Factor by which decoding reduces an image that is then resampled; this module does not import numba."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64
from picstore.errors import UsageError


def check_reducing_gap(gap: Any) -> float | None:
    """Return a ``reducing_gap`` as None or float; raise UsageError unless it is None or a number of at least 1.0."""
    if gap is None:
        return None
    if isinstance(gap, bool) or not isinstance(gap, Real) or not 1 <= float(gap) < math.inf:
        raise UsageError(f"reducing_gap is {gap!r}; give None for exact pixels, or a number of at least 1.0, as 2.0")
    return float(gap)


def decode_factors(shrink: npt.ArrayLike, gap: float | None) -> I64:
    """Choose the factors by which decoding divides the sides of images that are then resampled.

    Args:
        shrink: float array of any shape, factors by which decoding and resampling together divide the sides.
        gap: smallest factor that is left to the resampling, as Pillow's ``reducing_gap``; None for exact pixels.

    Returns:
        int64 of the same shape: the largest of 8, 4 and 2 that leaves at least ``gap`` to the resampling, else 1.
    """
    wanted = np.asarray(shrink, dtype=np.float64)
    exponents = np.zeros(wanted.shape, dtype=np.int64)
    if gap is not None:
        for factor in (2, 4, 8):
            exponents += wanted >= gap * factor
    return np.left_shift(1, exponents)
