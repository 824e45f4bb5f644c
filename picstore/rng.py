"""Counter-based random numbers: pure functions of integers, the same on every machine, rank and library version.

There is no state: a key and a counter identify a draw, so any draw can be made at any time, in any order and by any
number of processes. The arithmetic is SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), modulo 2**64:

    mix(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;  z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    key(w0, w1, ...):  k = 0;  for each word w:  k = mix((k + G) ^ w)          with G = 0x9E3779B97F4A7C15
    bits(k, c) = mix(k + (c + 1) * G)                                        the c-th output of SplitMix64(k)

The first word of a key names the use (one of the constants below), the second is the user's seed.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64, U64

Words: TypeAlias = "int | U64"

# Purposes of random numbers. A key begins with one of these constants, so that each purpose draws other numbers.
DEAL = 1  # convert: assignment of records to streams; index: order of the inputs
SHUFFLE = 2  # shuffle: file of each record, and order of the records in a file
PLAN = 3  # loader: order of containers, and order of the records in a container
AUGMENT = 4  # loader: parameters of transforms
MUX = 5  # loader of several datasets (mux): order of the samples in a batch
MEASURE = 6  # convert --measure: choice of the inputs to measure
SPLIT = 7  # Dataset.split: the part to which each record belongs
WEIGHT = 8  # loader: choice of the records whose fractional number of repeats is rounded up in an epoch
BUCKET = 9  # loader with buckets: assignment of a bucket's samples to batches

# Random numbers for a permutation are drawn in chunks of this many, which fit into the CPU's cache: 10**7 numbers drawn
# at once take five times as long.
_IN_CACHE = 1 << 14
# Shortest array for which ``stable_argsort`` packs indices into the values; shorter arrays would be sorted slower.
_LONG = 512
_MASK = (1 << 64) - 1
# Constants of the random generator SplitMix64; kernels in other modules use them too.
GOLDEN, MIX1, MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix_int(z: int) -> int:
    z ^= z >> 30
    z = (z * MIX1) & _MASK
    z ^= z >> 27
    z = (z * MIX2) & _MASK
    return z ^ (z >> 31)


def _mix(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX2)
    mixed: U64 = z ^ (z >> np.uint64(31))
    return mixed


def key(*words: int) -> int:
    """Hash a sequence of integers, each taken modulo 2**64, to a 64-bit key."""
    k = 0
    for word in words:
        k = _mix_int(((k + GOLDEN) & _MASK) ^ (word & _MASK))
    return k


def keys(k: Words, words: U64) -> U64:
    """Hash each of ``words`` with ``k``, a key or array of keys, to a key: ``keys(key(a), [b])[0] == key(a, b)``."""
    with np.errstate(over="ignore"):
        return _mix(np.bitwise_xor(words, np.asarray(k, np.uint64) + np.uint64(GOLDEN)))


def bits(k: Words, counters: npt.ArrayLike) -> U64:
    """Draw 64 random bits for each counter; ``k`` is a key, or an array of keys that broadcasts with the counters."""
    c, base = np.asarray(counters, np.uint64), np.asarray(k, np.uint64)
    with np.errstate(over="ignore"):
        return _mix(base + (c + np.uint64(1)) * np.uint64(GOLDEN))


def unit(k: Words, counters: npt.ArrayLike) -> F64:
    """Draw for each counter a uniform number in [0, 1), a multiple of 2**-53."""
    high: F64 = (bits(k, counters) >> np.uint64(11)).astype(np.float64)
    return high * 2.0**-53


def below(k: Words, counters: npt.ArrayLike, limit: int) -> I64:
    """Draw for each counter an integer in [0, limit), ``(bits >> 32) * limit >> 32``; 1 ≤ ``limit`` ≤ 2**32."""
    if not 0 < limit <= 1 << 32:
        raise ValueError(f"limit {limit} is not in 1 … 2**32")
    high = bits(k, counters) >> np.uint64(32)
    scaled: U64 = (high * np.uint64(limit)) >> np.uint64(32)
    return scaled.astype(np.int64)


def permutation(k: int, n: int) -> I64:
    """Draw a permutation of the integers 0 … n − 1 by sorting them by :func:`bits` of the key ``k`` (stable sort)."""
    drawn = np.empty(n, dtype=np.uint64)
    for start in range(0, n, _IN_CACHE):
        drawn[start : start + _IN_CACHE] = bits(k, np.arange(start, min(n, start + _IN_CACHE), dtype=np.uint64))
    return stable_argsort(drawn)


def permutations(k: U64, counts: I64) -> list[I64]:
    """Draw a :func:`permutation` of ``counts[i]`` integers with key ``k[i]`` for each i, sorting all in one call."""
    ends = np.cumsum(counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    counters = np.arange(len(owner)) - (ends - counts)[owner]
    order = np.lexsort((bits(k[owner], counters), owner))
    return np.split(counters[order], ends[:-1])


def stable_argsort(values: U64) -> I64:
    """Return ``np.argsort(values, kind="stable")``; long arrays of random bits take an eighth of NumPy's time.

    NumPy sorts numbers by SIMD, but has no such stable argsort. Therefore each number's low bits are replaced by its
    index before sorting; indices of numbers with equal high bits are then sorted again.
    """
    n = len(values)
    if n < _LONG:
        return np.argsort(values, kind="stable").astype(np.int64)
    low = np.uint64((1 << (n - 1).bit_length()) - 1)
    packed = values & ~low
    packed |= np.arange(n, dtype=np.uint64)
    packed.sort()
    order: I64 = (packed & low).astype(np.int64)
    packed &= ~low
    same = packed[1:] == packed[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        order[tied] = order[tied][np.argsort(values[order[tied]], kind="stable")]
    return order
