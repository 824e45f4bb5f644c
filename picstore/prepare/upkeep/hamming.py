"""Search of 64-bit hashes by Hamming distance, without comparing all pairs.

Multi-index hashing (Norouzi, Punjani and Fleet, 2012): a hash consists of three bands of bits. If the bands of two
hashes differ in more than r0, r1 and r2 bits, the hashes differ in r0 + r1 + r2 + 3 or more. So each band has a table
from its values to the hashes that have them, and a search looks up the values near the query's: for a distance of 6,
that is radii of 1, 1 and 2, 300 values of 2**22. A million hashes take 7 s on one core.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np

from picstore.arrays import I64, U64
from picstore.kernels.jit import kernel, popcount

MAX_DISTANCE = 11  # radii of 3; a distance of 12 needs one of 4, 8,000 more look-ups

_BITS = 22  # of the widest band
_BANDS = ((0, 21), (21, 21), (42, _BITS))  # lowest bit, number of bits


def find_nearest(queries: U64, hashes: U64, distance: int) -> tuple[I64, I64]:
    """Find the nearest hash within a distance of each query, of several the first.

    Returns:
        Indices in ``hashes``, -1 for none, and distances, ``distance`` + 1 for none, both int64 (queries,).
    """
    if not len(hashes):
        return np.full(len(queries), -1), np.full(len(queries), distance + 1)
    unique, first = np.unique(hashes, return_index=True)
    asked, inverse = np.unique(queries, return_inverse=True)
    order = np.argsort(first)
    indices, distances = _search(asked, unique[order], distance, leaders=False)
    found = np.where(indices < 0, -1, first[order][indices])
    return found[inverse], distances[inverse]


def find_leaders(hashes: U64, distance: int) -> tuple[I64, I64]:
    """Group hashes around leaders: one with no leader before it within a distance is a leader itself.

    A hash that is no leader belongs to the nearest leader before it, so it is within the distance of that. Groups that
    are chains of near pairs would not promise this. Equal hashes belong to one leader.

    Returns:
        The index of each hash's leader, its own for a leader, and the distance to it, both int64 (hashes,).
    """
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    indices, distances = _search(unique[order], unique[order], distance, leaders=True)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order][indices][rank[inverse]], distances[rank[inverse]]


def _search(queries: U64, hashes: U64, distance: int, *, leaders: bool) -> tuple[I64, I64]:
    """Search hashes that all differ."""
    sorted_hashes, orders = np.empty((3, len(hashes)), np.uint64), np.empty((3, len(hashes)), np.int32)
    starts = np.zeros((3, (1 << _BITS) + 1), np.int32)
    for band, (shift, bits) in enumerate(_BANDS):
        values = (hashes >> np.uint64(shift)).astype(np.int64) & ((1 << bits) - 1)
        orders[band] = np.argsort(values, kind="stable")
        sorted_hashes[band] = hashes[orders[band]]
        np.cumsum(np.bincount(values, minlength=1 << _BITS), out=starts[band, 1:])
    used = np.packbits(starts[:, 1:] > starts[:, :-1], axis=1, bitorder="little")
    radii = [(distance - 2 + band) // 3 for band in range(3)]  # one more each would be the distance and one
    flips = [sum(1 << bit for bit in bits) for n in range(radii[2] + 1) for bits in combinations(range(_BITS), n)]
    counts = [sum(comb(_BITS, n) for n in range(radius + 1)) for radius in radii]
    bands = np.array([(*band, count) for band, count in zip(_BANDS, counts, strict=True)])
    indices, distances = np.empty((2, len(queries)), np.int64)
    tables = sorted_hashes, orders, starts, used
    find_nearest_each(queries, tables, (bands, np.array(flips)), (distance, leaders), (indices, distances))
    return indices, distances


@kernel(
    "(uint64[::1], Tuple((uint64[:, ::1], int32[:, ::1], int32[:, ::1], uint8[:, ::1])), "
    "Tuple((int64[:, ::1], int64[::1])), Tuple((int64, boolean)), UniTuple(int64[::1], 2))"
)
def find_nearest_each(queries, tables, nearby, limits, found):
    """Find the nearest hash of each query; with ``leaders``, of the queries before it that have none."""
    hashes, orders, starts, used = tables
    bands, flips = nearby
    distance, leaders = limits
    indices, distances = found
    for i in range(queries.size):
        query, best, nearest = queries[i], distance + 1, -1
        for band in range(3):
            value = np.int64(query >> np.uint64(bands[band, 0])) & ((1 << bands[band, 1]) - 1)
            for flip in flips[: bands[band, 2]]:
                near = value ^ flip
                if not used[band, near >> 3] >> (near & 7) & 1:  # a table that fits the cache
                    continue
                for k in range(starts[band, near], starts[band, near + 1]):
                    apart = np.int64(popcount(query ^ hashes[band, k]))
                    if apart > best:
                        continue
                    j = orders[band, k]
                    closer = apart < best or j < nearest
                    if closer and not (leaders and (j >= i or indices[j] != j)):
                        best, nearest = apart, j
        indices[i], distances[i] = nearest, best
        if leaders and nearest < 0:
            indices[i], distances[i] = i, 0
