"""Gaussian weights of blurs: constants of ``train/cpu/blur_sharpen_equalize.py``, and the same weights for a GPU.

Weight k is q^(k²) with q = exp(-0.5 / sigma²). Each weight follows from the previous weight by two multiplications. All
operations are rounded exactly (IEEE 754), so that weights do not depend on a machine's exponential function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.arrays import F64, I64, Array

NEGLIGIBLE = 2.0**-16  # outermost taps on a side are left out if at most this fraction of all weights is theirs
GROUP = 4  # number of pairs of taps (left and right, or above and below) that a kernel adds up at once
TERMS = 16  # number of terms of the series by which ``first_ratio`` computes exp, for an error below 1e-16
MOST_EXPONENT = 700.0  # replaces any larger x in exp(-x), because both results are almost 0


def first_ratio(sigma: Any) -> Any:
    """Return exp(-0.5 / sigma²): compute exp(-0.5 / sigma² / 1024) by a series, and square the result ten times."""
    t = np.minimum(0.5 / sigma / sigma, MOST_EXPONENT) / 1024
    ratio = 1.0 - t / TERMS
    for k in range(TERMS - 1, 0, -1):
        ratio = 1.0 - ratio * t / k
    for _ in range(10):
        ratio = ratio * ratio
    return ratio


def smoothing_rows(radius: I64, sigma: F64) -> Array:
    """Return a row of weights for each of m blurs, float32 (m, width).

    Args:
        radius: int64 (m,), number of taps on either side of the middle tap.
        sigma: float64 (m,), standard deviation in pixels, above 0.

    Returns:
        In each row: the number of groups of ``GROUP`` taps on a side, the weight of the middle tap, and the weights of
        one side's taps from the middle outwards, 0 for negligible taps. ``width`` is even.
    """
    with np.errstate(over="ignore"):
        ratio = first_ratio(sigma)
    square, value, total = ratio * ratio, np.ones_like(sigma), np.ones_like(sigma)
    most = int(radius.max(initial=0))
    values = np.zeros((most + 1, len(sigma)))
    values[0] = 1.0
    for k in range(1, most + 1):
        value = value * ratio
        ratio = ratio * square
        values[k] = np.where(k <= radius, value, 0.0)
        total += 2 * values[k]
    kept, tail = radius.copy(), np.zeros_like(sigma)
    for k in range(most, 0, -1):
        tail += values[k] / total
        kept = np.where((kept == k) & (tail <= NEGLIGIBLE), k - 1, kept)
    rows = np.zeros((len(sigma), 2 + -(-most // GROUP) * GROUP), np.float32)
    rows[:, 0] = -(-kept // GROUP)
    rows[:, 1 : most + 2] = np.where(np.arange(most + 1) <= kept[:, None], (values / total).T, 0.0)
    return rows
