"""Search by Hamming distance: the results of comparing all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from picstore.prepare.upkeep.near_duplicates import MAX_DISTANCE, find_leaders, find_nearest


def hashes(count: int, seed: int) -> np.ndarray:
    """Random hashes with copies that differ in 0 to 12 bits, in random order."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 1 << 64, count, dtype=np.uint64)
    copies = found.copy()
    for k in range(count):
        for bit in rng.permutation(64)[: k % 13]:
            copies[k] ^= np.uint64(1) << np.uint64(bit)
    return rng.permutation(np.concatenate([found, copies]))


def distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    differences = (one[:, None] ^ other[None]).view(np.uint8).reshape(len(one), len(other), 8)
    return np.unpackbits(differences, axis=2).sum(axis=2)


@pytest.mark.parametrize("distance", range(MAX_DISTANCE + 1))
def test_the_nearest_hash_is_found_at_every_distance(distance: int) -> None:
    queries, others = hashes(150, 1), hashes(150, 1)[::-1][:250]
    apart = distances(queries, others)
    near = apart.min(axis=1) <= distance
    indices, found = find_nearest(queries, others, distance)
    np.testing.assert_array_equal(indices, np.where(near, apart.argmin(axis=1), -1))
    np.testing.assert_array_equal(found[near], apart.min(axis=1)[near])


@pytest.mark.parametrize("distance", [0, 1, 5, 6, 8, 11])
def test_each_hash_belongs_to_the_nearest_leader_before_it(distance: int) -> None:
    given = hashes(200, distance)
    apart, leaders, results = distances(given, given), [], {}
    for k, each in enumerate(given.tolist()):
        near = min(((int(apart[k, j]), j) for j in leaders if apart[k, j] <= distance), default=None)
        if each not in results:
            results[each] = near or (0, k)
            leaders += [] if near else [k]
    indices, found = find_leaders(given, distance)
    assert list(zip(found.tolist(), indices.tolist(), strict=True)) == [results[each] for each in given.tolist()]


def test_equal_hashes_take_no_longer_than_different_ones() -> None:
    given = np.zeros(1_000_000, np.uint64)  # 5 * 10**11 pairs
    indices, found = find_leaders(given, 6)
    assert not indices.any() and not found.any()


def test_no_hashes_have_no_neighbors() -> None:
    nothing = np.zeros(0, np.uint64)
    assert [len(each) for each in find_leaders(nothing, 6)] == [0, 0]
    indices, _ = find_nearest(np.ones(3, np.uint64), nothing, 6)
    assert indices.tolist() == [-1, -1, -1]
