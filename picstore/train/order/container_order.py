"""The containers of an epoch in a row: which one holds a record of the joined sequence, and where it starts.

Sorting all of 10**7 containers takes longer than a loader may take to resume, and a batch needs one for each lane. So
the containers are divided into parts by the high bits of the values that they are sorted by. The sums of the parts'
records tell in which part a record is; only parts that are asked for are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from picstore import rng
from picstore.arrays import I64, Array, Bools

_PART = 1 << 13  # containers of a part, on average; twice or half as many take longer
_MAX_PARTS = 1 << 16


class ContainerOrder:
    """Containers of ``counts`` records, permuted by the bits of a key, or in stored order without one."""

    def __init__(self, counts: I64, key: int | None) -> None:
        self._counts, self._key = counts, key
        parts = min(_MAX_PARTS, 1 + len(counts) // _PART)
        self._part = np.empty(len(counts), dtype=np.uint16)  # of each container; in their order it never falls
        for start in range(0, len(counts), _PART):
            numbers = np.arange(start, min(start + _PART, len(counts)))
            # ``below`` scales the high bits, so that it never falls as they rise.
            part = self._part[start : start + _PART]
            part[:] = numbers * parts // len(counts) if key is None else rng.below(key, numbers, parts)
        self._at_hand: Bools = np.zeros(parts, dtype=np.bool_)
        self._records = self.sum_parts(counts[:, None])[:, 0]
        self._part_ends = np.cumsum(self._records)
        self._sorted = self._ends = np.zeros(0, dtype=np.int64)  # containers of the parts at hand, and their ends

    @property
    def records(self) -> int:
        """Records of all containers."""
        return int(self._part_ends[-1])

    def locate(self, index: I64) -> tuple[I64, I64]:
        """Find the containers of records of the joined sequence, and the index of the first record of each."""
        self._sort(np.searchsorted(self._part_ends, index, side="right"))
        turn = np.searchsorted(self._ends, index, side="right")
        container = self._sorted[turn]
        return container, self._ends[turn] - self._counts[container]

    def start(self, container: int) -> int:
        """The index in the joined sequence of a container's first record."""
        self._sort(self._part[[container]])
        return int((self._ends - self._counts[self._sorted])[self._sorted == container][0])

    def sum_parts(self, values: Array) -> I64:
        """Sum values of containers, (containers, n), by part: int64 (parts, n)."""
        sums = np.zeros((values.shape[1], len(self._at_hand)))
        for start in range(0, len(values), _PART):
            part, some = self._part[start : start + _PART], values[start : start + _PART]
            for column, total in zip(some.T, sums, strict=True):
                total += np.bincount(part, column, len(total))
        exact: I64 = sums.T.astype(np.int64)  # float64 has the integers up to 2**53
        return exact

    def earlier(self, index: I64) -> Iterator[tuple[int, I64]]:
        """Yield the part of each record of the joined sequence, and the containers of that part before the record's."""
        parts = np.searchsorted(self._part_ends, index, side="right")
        self._sort(parts)
        begins = np.searchsorted(self._ends, (self._part_ends - self._records)[parts], side="right")
        turns = np.searchsorted(self._ends, index, side="right")
        for part, begin, turn in zip(parts.tolist(), begins.tolist(), turns.tolist(), strict=True):
            yield part, self._sorted[begin:turn]

    def between(self, starts: I64, stops: I64) -> Iterator[tuple[I64, I64]]:
        """Yield the containers of each run of records of the joined sequence, and the index of their first records."""
        first, last = (np.searchsorted(self._part_ends, index, side="right") for index in (starts, stops - 1))
        self._sort(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        begins = np.searchsorted(self._ends, starts, side="right")
        ends = np.searchsorted(self._ends, stops - 1, side="right") + 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            containers = self._sorted[begin:end]
            yield containers, self._ends[begin:end] - self._counts[containers]

    def _sort(self, parts: Array) -> None:
        """Sort the containers of parts, unless all parts are at hand; the sorted ones replace what was at hand."""
        if self._at_hand[parts].all():
            return
        self._at_hand[:] = False
        self._at_hand[parts] = True
        found: I64 = np.flatnonzero(self._at_hand[self._part])
        if self._key is not None:
            found = found[rng.stable_argsort(rng.bits(self._key, found))]
        records = np.where(self._at_hand, self._records, 0)
        others = self._part_ends - np.cumsum(records)  # records before the end of a part that are not at hand
        self._sorted, self._ends = found, np.cumsum(self._counts[found]) + others[self._part[found]]
