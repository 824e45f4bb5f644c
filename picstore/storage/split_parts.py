"""Assignment of records to the parts of a split by arithmetic on ids, evenly for each value of a column."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from picstore import rng
from picstore.arrays import F64, I64, U8, U64
from picstore.errors import UsageError
from picstore.storage.edits.columns import Values

_MAX_PARTS = 100
_CHUNK = 1 << 15  # number of ids to hash at a time, few enough for the CPU's cache


def split_bounds(fractions: Sequence[float]) -> F64:
    """Return the bounds between the parts of a split: sums of the first 1, 2, … ``fractions``, without a sum of 1.

    Raise UsageError if a fraction is not in (0, 1], or the fractions sum to more than 1.
    """
    if not 1 <= len(fractions) < _MAX_PARTS or not all(
        isinstance(fraction, (int, float, np.number)) and 0 < fraction <= 1 for fraction in fractions
    ):
        raise UsageError(f"the fractions are {fractions}; give 1 to {_MAX_PARTS - 1} numbers from 0 to 1")
    total = math.fsum(fractions)
    if total > 1 + 1e-9:
        raise UsageError(f"the fractions {fractions} have a sum of {total:g}; it must be at most 1")
    bounds = np.cumsum(np.array(fractions, dtype=np.float64))
    return bounds[:-1] if total > 1 - 1e-9 else bounds


def assign_parts(ids: I64, bounds: F64, *, seed: int, values: Values | None = None) -> U8:
    """Return each record's part, uint8 (n,): the number of ``bounds`` that are not above the record's point in [0, 1).

    Without ``values``, the point is a hash of seed and id. With ``values``, one per record, records of the same value
    are spread evenly: the k-th by ascending id has the point (u + k × the golden ratio) modulo 1 (Kronecker's
    sequence), where u is a hash of the value. Records with greater ids, added later, do not change the points of
    earlier records.
    """
    key = rng.key(rng.SPLIT, seed)
    points = None if values is None else _even_points(ids, values, key)
    parts = np.empty(len(ids), dtype=np.uint8)
    for start in range(0, len(ids), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        drawn = rng.bits(key, ids[chunk].astype(np.uint64)) if points is None else points[chunk]
        parts[chunk] = np.searchsorted(bounds, (drawn >> np.uint64(11)) * 2.0**-53, side="right")
    return parts


def _even_points(ids: I64, values: Values, key: int) -> U64:
    """Return each record's point in Kronecker's sequence, see :func:`assign_parts`, in units of 2**-64."""
    array = np.array(values)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise UsageError("by= takes a column of integers or texts, with a value for each record")
    different, which = np.unique(array, return_inverse=True)
    order = np.lexsort((ids, which))
    ranks = np.empty(len(ids), dtype=np.uint64)
    ranks[order] = np.arange(len(ids)) - np.searchsorted(which[order], np.arange(len(different)))[which[order]]
    hashes = [hashlib.sha256(str(value).encode()).digest()[:8] for value in different.tolist()]
    starts = rng.keys(key, np.array([int.from_bytes(each, "little") for each in hashes], dtype=np.uint64))
    with np.errstate(over="ignore"):
        # Points are in units of 2**-64, in which GOLDEN is the golden ratio modulo 1; overflow takes them modulo 1.
        points: U64 = starts[which] + ranks * np.uint64(rng.GOLDEN)
    return points
