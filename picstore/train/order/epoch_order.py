"""Order of an epoch: the container and record of each sample, as arithmetic on (seed, epoch, manifest).

Nothing is stored or communicated. The containers are permuted, the records in each container are permuted, and all are
joined into one sequence of N records. The sequence is cut into L lanes, contiguous runs; lane l has ceil((N - l) / L)
records. Sample g of the epoch is record g // L of lane g mod L. So a batch mixes as many runs of the dataset as there
are lanes, while each lane reads its containers one after the other. ``rank_shares.py`` decides which rank makes which
samples. docs/order.md has the formulas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import I64, U8, Array, Bools

# Source of a sample's bytes when its batch is made: the container, which the sample's lane (part of the epoch) still
# reads; a copy from the time when the lane left the container; or a read of the single record.
IN_CONTAINER, SET_ASIDE, ALONE = 0, 1, 2
# If a container has at most this many records, one call draws its permutation together with other containers'.
_SMALL = 256
# Average number of containers in a part of a ``ContainerOrder``; half or twice as many would be sorted more slowly.
_PART = 1 << 13
_MAX_PARTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of an epoch, as arrays (n,)."""

    container: I64  # indices of containers in stored order
    record: I64  # index in the container; before ``skip_deleted``, index among the container's live records
    lane: I64
    # For each sample, the index in the epoch of the last sample with the same lane (part of the epoch) and container.
    end: I64
    copy: I64 | None = None  # number of the record's earlier samples in the epoch; None if each record comes once
    held: U8 | None = None  # IN_CONTAINER, SET_ASIDE or ALONE; None if all are IN_CONTAINER

    def __len__(self) -> int:
        return len(self.container)


def groups_of(values: I64) -> Iterator[I64]:
    """Yield the indices of each group of equal values, ascending by value and within a group."""
    grouped = np.argsort(values, kind="stable")
    bounds = np.flatnonzero(np.diff(values[grouped], prepend=-1, append=-1))
    for first, after in pairwise(bounds.tolist()):
        yield grouped[first:after]


class ContainerOrder:
    """Order of containers with ``counts`` records: permuted by random bits of ``key``, or as stored if ``key`` is None.

    A record's index is the number of records before it in this order. Only parts of the order that hold a requested
    index are sorted, because sorting 10**7 containers would take longer than a loader may take to resume.
    """

    def __init__(self, counts: I64, key: int | None) -> None:
        self._counts, self._key = counts, key
        parts = min(_MAX_PARTS, 1 + len(counts) // _PART)
        # For each container, the index of its part. This index never decreases along the order of the containers.
        self._part = np.empty(len(counts), dtype=np.uint16)
        for start in range(0, len(counts), _PART):
            numbers = np.arange(start, min(start + _PART, len(counts)))
            # ``rng.below`` scales the high bits of a sort key to the index of a part: lower keys get earlier parts.
            part = self._part[start : start + _PART]
            part[:] = numbers * parts // len(counts) if key is None else rng.below(key, numbers, parts)
        self._at_hand: Bools = np.zeros(parts, dtype=np.bool_)
        self._records = self.sum_parts(counts[:, None])[:, 0]
        self._part_ends = np.cumsum(self._records)
        # ``_sorted``: containers, in order, of the parts that hold the most recently requested records; other parts are
        # not sorted. ``_ends``: for each of these containers, the index after its last record.
        self._sorted = self._ends = np.zeros(0, dtype=np.int64)

    @property
    def records(self) -> int:
        """Number of records in all containers."""
        return int(self._part_ends[-1])

    def locate(self, index: I64) -> tuple[I64, I64]:
        """Return the container of each record given in ``index``, and the index of the container's first record."""
        self._sort(np.searchsorted(self._part_ends, index, side="right"))
        turn = np.searchsorted(self._ends, index, side="right")
        container = self._sorted[turn]
        return container, self._ends[turn] - self._counts[container]

    def starts(self, containers: I64) -> I64:
        """Return the index of each container's first record among all containers' records."""
        self._sort(self._part[containers])
        by_number = np.argsort(self._sorted)
        turns = by_number[np.searchsorted(self._sorted, containers, sorter=by_number)]
        return self._ends[turns] - self._counts[containers]

    def sum_parts(self, values: Array) -> I64:
        """Sum the n columns of ``values``, (containers, n), over each part's containers: int64 (parts, n)."""
        sums = np.zeros((values.shape[1], len(self._at_hand)))
        for start in range(0, len(values), _PART):
            part, some = self._part[start : start + _PART], values[start : start + _PART]
            for column, total in zip(some.T, sums, strict=True):
                total += np.bincount(part, column, len(total))
        # The float64 sums are exact, because they are integers below 2**53.
        exact: I64 = sums.T.astype(np.int64)
        return exact

    def earlier(self, index: I64) -> Iterator[tuple[int, I64]]:
        """Yield, for each record in ``index``, the part of its container, and the part's containers before that one."""
        parts = np.searchsorted(self._part_ends, index, side="right")
        self._sort(parts)
        begins = np.searchsorted(self._ends, (self._part_ends - self._records)[parts], side="right")
        turns = np.searchsorted(self._ends, index, side="right")
        for part, begin, turn in zip(parts.tolist(), begins.tolist(), turns.tolist(), strict=True):
            yield part, self._sorted[begin:turn]

    def between(self, starts: I64, stops: I64) -> Iterator[tuple[I64, I64]]:
        """Yield for each range the containers with records in it, and the index of each container's first record.

        Range i holds the record indices ``starts[i]`` to ``stops[i]`` - 1; its first container may begin before the
        range.
        """
        first, last = (np.searchsorted(self._part_ends, index, side="right") for index in (starts, stops - 1))
        self._sort(np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]))
        begins = np.searchsorted(self._ends, starts, side="right")
        ends = np.searchsorted(self._ends, stops - 1, side="right") + 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            containers = self._sorted[begin:end]
            yield containers, self._ends[begin:end] - self._counts[containers]

    def _sort(self, parts: Array) -> None:
        """Sort the containers of ``parts`` unless they are sorted already, and forget the order of all other parts."""
        if self._at_hand[parts].all():
            return
        self._at_hand[:] = False
        self._at_hand[parts] = True
        found: I64 = np.flatnonzero(self._at_hand[self._part])
        if self._key is not None:
            found = found[rng.stable_argsort(rng.bits(self._key, found))]
        records = np.where(self._at_hand, self._records, 0)
        # ``records`` is 0 for unsorted parts; so for each part, ``others`` counts the unsorted records up to its end.
        others = self._part_ends - np.cumsum(records)
        self._sorted, self._ends = found, np.cumsum(self._counts[found]) + others[self._part[found]]


class EpochOrder:
    """Order of one epoch over containers with ``counts`` records, determined by the arguments alone.

    With ``shuffle=False`` each lane reads the records in stored order.
    """

    def __init__(self, counts: npt.ArrayLike, *, seed: int, epoch: int, lanes: int, shuffle: bool = True) -> None:
        counts = np.asarray(counts, dtype=np.int64)
        self.lanes = lanes
        self._counts, self._shuffle = counts, shuffle
        self._key = rng.key(rng.PLAN, seed, epoch)
        self.containers = ContainerOrder(counts, self._key if shuffle else None)
        self.records = self.containers.records
        base, longer = divmod(self.records, lanes)
        lane = np.arange(lanes + 1)
        self._lane_starts = lane * base + np.minimum(lane, longer)
        self._permutations: OrderedDict[int, I64] = OrderedDict()

    def locate(self, samples: I64) -> Samples:
        """Return container, record, lane and ``end`` (see `Samples`) of samples, given their indices in the epoch."""
        lane = samples % self.lanes
        index = self._lane_starts[lane] + samples // self.lanes
        container, start = self.containers.locate(index)
        record = index - start
        stop = np.minimum(start + self._counts[container], self._lane_starts[lane + 1])
        end = (stop - 1 - self._lane_starts[lane]) * self.lanes + lane
        if self._shuffle:
            self._draw_permutations(container)
            for mine in groups_of(container):
                record[mine] = self.records_of(int(container[mine[0]]))[record[mine]]
        return Samples(container, record, lane, end)

    def find(self, containers: I64, records: I64) -> I64:
        """Return the index in the epoch of each record ``records[i]`` of ``containers[i]``: inverts :meth:`locate`."""
        turns = records.copy()
        if self._shuffle:
            for mine in groups_of(containers):
                drawn = self.records_of(int(containers[mine[0]]))
                inverse = np.empty_like(drawn)
                inverse[drawn] = np.arange(len(drawn))
                turns[mine] = inverse[records[mine]]
        index = self.containers.starts(containers) + turns
        lane = np.searchsorted(self._lane_starts, index, side="right") - 1
        found: I64 = (index - self._lane_starts[lane]) * self.lanes + lane
        return found

    def records_of(self, container: int) -> I64:
        """Return the indices of a container's records in the order in which the epoch has the records."""
        found = self._permutations.get(container)
        if found is None:
            key, count = rng.key(self._key, container), int(self._counts[container])
            found = rng.permutation(key, count) if self._shuffle else np.arange(count)
            self._keep({container: found})
        self._permutations.move_to_end(container)
        return found

    def lane_positions(self, sample: int) -> I64:
        """Return, for each lane, the index among all records of the first that it has from sample ``sample`` on."""
        return self._lane_starts[:-1] + (sample + self.lanes - 1 - np.arange(self.lanes)) // self.lanes

    def numbers(self, lane: int, index: I64) -> I64:
        """Return the index in the epoch of records of lane ``lane``, given the records' indices among all records."""
        numbers: I64 = (index - self._lane_starts[lane]) * self.lanes + lane
        return numbers

    def _draw_permutations(self, containers: I64) -> None:
        """Draw missing permutations of small containers in one call; a call for each would take six times as long."""
        each = np.unique(containers)
        missing = np.array([number for number in each.tolist() if number not in self._permutations], np.int64)
        missing = missing[self._counts[missing] <= _SMALL]
        # ``_keep`` keeps 4 * lanes permutations; if more were drawn at once, some would be lost before their use.
        if 1 < len(missing) <= 4 * self.lanes:
            keys = rng.keys(rng.key(self._key), missing.astype(np.uint64))
            drawn = rng.permutations(keys, self._counts[missing])
            self._keep(dict(zip(missing.tolist(), drawn, strict=True)))

    def _keep(self, permutations: Mapping[int, I64]) -> None:
        self._permutations.update(permutations)
        while len(self._permutations) > 4 * self.lanes:
            self._permutations.popitem(last=False)
