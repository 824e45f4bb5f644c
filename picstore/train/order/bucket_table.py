"""Records by bucket: the bucket of each, and how many samples of each bucket an epoch has before a sample.

That number is arithmetic: sums over the parts of the containers' order, over containers of one part, and over the
records of the container that a lane is in the middle of. So the batches that are complete before a sample are counted
without going through the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from picstore.arrays import I64, U8, Array, Bools
from picstore.train.order.epoch import EpochOrder

_BLOCK = 1 << 12  # containers to count at a time
_SPAN = 1 << 12  # samples to look back at first


@dataclass(frozen=True, slots=True)
class BucketTable:
    """The buckets of a data set's live records.

    Attributes:
        starts: int64 (containers + 1,), number of live records before each container.
        buckets: uint8 (records,).
        tally: (containers, buckets), records of each container in each bucket.
    """

    starts: I64 = field(repr=False)
    buckets: U8 = field(repr=False)
    tally: Array = field(repr=False)

    @classmethod
    def count(cls, counts: I64, buckets: U8, number: int) -> BucketTable:
        """Count the records in each of ``number`` buckets for containers of ``counts`` records."""
        starts: I64 = np.concatenate(([0], np.cumsum(counts)))
        tally = np.zeros((len(counts), number), dtype=np.min_scalar_type(int(counts.max(initial=0))))
        for start in range(0, len(counts), _BLOCK):
            some = tally[start : start + _BLOCK]
            row = np.repeat(np.arange(len(some)), counts[start : start + _BLOCK])
            cell = row * number + buckets[starts[start] : starts[start + len(some)]]
            some[:] = np.bincount(cell, minlength=some.size).reshape(some.shape)
        return cls(starts, buckets, tally)

    @property
    def counts(self) -> I64:
        """Number of records of each container."""
        return np.diff(self.starts)

    def of(self, containers: I64, records: I64) -> U8:
        """Look up the buckets of live records of containers."""
        found: U8 = self.buckets[self.starts[containers] + records]
        return found


class BucketCounts:
    """How many samples of each bucket an epoch has before a sample, and which of them came last."""

    def __init__(self, order: EpochOrder, table: BucketTable) -> None:
        self._order, self._table = order, table
        sums = order.containers.sum_parts(table.tally)
        self._before_parts = np.cumsum(sums, axis=0) - sums
        self._before_lanes = self._joined(order.lane_positions(0))

    def before(self, sample: int) -> I64:
        """Count the samples of each bucket before a sample of the epoch, (buckets,)."""
        return self._joined(self._order.lane_positions(sample)) - self._before_lanes

    def since(self, firsts: I64, sample: int) -> tuple[I64, I64]:
        """Find the samples of each bucket from one on, given by its number in the bucket, that are before ``sample``.

        Returns:
            The samples' numbers in the epoch, ascending. Each bucket's samples follow each other without a gap, and may
            begin earlier than asked. And by bucket, how many samples lie before the first returned one.
        """
        begins, seen = np.full(len(firsts), sample), self.before(sample)
        found, span = [np.zeros(0, dtype=np.int64)], _SPAN
        while (short := seen > firsts).any():
            begin = max(0, sample - span)
            begins[short], seen[short] = begin, self.before(begin)[short]
            found.append(self._samples(begin, sample, short & (seen <= firsts)))
            span *= 4
        numbers = np.unique(np.concatenate(found))
        samples = self._order.locate(numbers)
        return numbers[numbers >= begins[self._table.of(samples.container, samples.record)]], seen

    def _joined(self, index: I64) -> I64:
        """Add up the samples of each bucket before records of the joined sequence."""
        last = np.minimum(index, self._order.records - 1)
        containers, starts = self._order.containers.locate(last)
        total = np.zeros(self._table.tally.shape[1], dtype=np.int64)
        for (part, earlier), container, count in zip(
            self._order.containers.earlier(last), containers.tolist(), (index - starts).tolist(), strict=True
        ):
            records = self._order.records_of(container)[:count]
            total += self._before_parts[part] + self._table.tally.take(earlier, axis=0).sum(axis=0, dtype=np.int64)
            total += np.bincount(self._table.of(np.array(container), records), minlength=len(total))
        return total

    def _samples(self, begin: int, end: int, buckets: Bools) -> I64:
        """Number the samples from ``begin`` to ``end`` of the containers that hold records of the marked buckets."""
        starts, stops = self._order.lane_positions(begin), self._order.lane_positions(end)
        lanes = np.flatnonzero(starts < stops)
        found = [np.zeros(0, dtype=np.int64)]
        runs = self._order.containers.between(starts[lanes], stops[lanes])
        for lane, (containers, firsts) in zip(lanes.tolist(), runs, strict=True):
            held = self._table.tally[containers][:, buckets].any(axis=1)
            containers, firsts = containers[held], firsts[held]
            ends = firsts + self._table.starts[containers + 1] - self._table.starts[containers]
            firsts, ends = np.maximum(firsts, starts[lane]), np.minimum(ends, stops[lane])
            lengths = ends - firsts
            index = np.arange(lengths.sum()) + np.repeat(firsts - np.cumsum(lengths) + lengths, lengths)
            found.append(self._order.numbers(lane, index))
        return np.concatenate(found)
