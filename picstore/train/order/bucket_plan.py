"""Plan of an epoch's batches if records are in buckets: the samples of each batch, and the rank of each sample.

Batch q of a bucket has the samples of the bucket from ``ends[q - 1]`` to ``ends[q]``, counted in the order of the
epoch. A batch is complete with its last sample. The batches of all buckets come in the order in which they become
complete. ``rank_shares.py`` gives a batch's samples to ranks. docs/order-batches.md has the rules.

The plan goes through an epoch in chunks and carries only the samples of incomplete batches from chunk to chunk, so
memory does not grow with the number of records. An epoch may be entered at any sample, because the number of previous
samples of each bucket determines the incomplete batches. For each lane, that number is a sum over whole parts of the
containers' order, over whole containers of one part, and over the first records of one container.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from picstore.arrays import I64, U8, Array, Bools, Table
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import Division
from picstore.train.order.rank_shares import RankShares

_CHUNK = 1 << 14  # number of an epoch's samples to assign to batches at a time
# Number of samples on either side of a guess that the search for a batch's start covers first; each further search
# covers 16 times as many.
_NEAR = 1 << 11
# Number of bits of a batch's index in the field "batch"; the bits above are the bucket's index.
_BATCH_BITS = 40
# Fields of a sample: index in the epoch, container, record, lane, index of the last sample that the lane takes from the
# container, batch, size of the batch, plan of the batch, and whether the sample is the last of the batch.
_SAMPLE = np.dtype(
    [(name, "<i8") for name in ("number", "container", "record", "lane", "end", "batch", "size", "plan")]
    + [("last", "?")]
)
_BLOCK = 1 << 12  # number of containers whose records are counted by bucket at a time
# Number of preceding samples that ``BucketCounts.since`` searches at first; each further search covers 4 times as many.
_SPAN = 1 << 12


@dataclass(frozen=True, slots=True)
class BucketTable:
    """Bucket (range of image shapes) of each live record of a dataset; a live record is one that is not deleted.

    Attributes:
        starts: int64 (containers + 1,), number of live records before each container.
        buckets: uint8 (records,), index of each live record's bucket.
        tally: (containers, buckets), number of live records in each container and bucket.
    """

    starts: I64 = field(repr=False)
    buckets: U8 = field(repr=False)
    tally: Array = field(repr=False)

    @classmethod
    def count(cls, counts: I64, buckets: U8, number: int) -> BucketTable:
        """Build the table of ``number`` buckets, given the containers' record counts and each record's bucket."""
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
        """Number of live records of each container."""
        return np.diff(self.starts)

    def of(self, containers: I64, records: I64) -> U8:
        """Return the bucket of each live record, given its container and its index in the container."""
        found: U8 = self.buckets[self.starts[containers] + records]
        return found


class BucketCounts:
    """Counter and finder of the samples of each bucket (range of image shapes) before a given sample of an epoch."""

    def __init__(self, order: EpochOrder, table: BucketTable) -> None:
        self._order, self._table = order, table
        sums = order.containers.sum_parts(table.tally)
        self._before_parts = np.cumsum(sums, axis=0) - sums
        self._before_lanes = self._joined(order.lane_positions(0))

    def before(self, sample: int) -> I64:
        """Return the number of each bucket's samples before sample ``sample`` of the epoch, int64 (buckets,)."""
        return self._joined(self._order.lane_positions(sample)) - self._before_lanes

    def since(self, firsts: I64, sample: int) -> tuple[I64, I64]:
        """Find the last samples of each bucket before ``sample``.

        Args:
            firsts: int64 (buckets,), maximum number of each bucket's first samples that may be missing.

        Returns:
            The samples' indices in the epoch, ascending; and for each bucket, the number of samples that are missing.
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
        """For each bucket, add up the numbers of records before the positions ``index`` in the order of containers."""
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
        """Return the samples from ``begin`` to ``end`` - 1 whose containers have records of the marked ``buckets``."""
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


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """Samples of a chunk of an epoch, and samples of batches that earlier chunks have left incomplete.

    Attributes:
        samples: table (samples,), sorted by batch, and within a batch by the order of the epoch.
        group: int64 (samples,), index of each sample's batch.
        complete: bool (batches,), whether ``samples`` holds the whole batch.
        last: int64 (batches,), index in ``samples`` of each batch's last sample.
    """

    samples: Table
    group: I64
    complete: Bools
    last: I64

    @property
    def waiting(self) -> Table:
        """The samples of batches that are not complete."""
        return self.samples[~self.complete[self.group]]

    def owners(self, rank_shares: RankShares) -> I64:
        """Return the rank of each sample, int64 (samples,); −1 if the rank is unknown until the batch is complete."""
        readers = rank_shares.find_readers(self.samples["lane"])
        return rank_shares.deal_batches(readers, self.group, self.samples["size"], whole=self.complete)


def _group(samples: Table) -> PlannedBatches:
    """Sort samples by batch; within a batch they keep the given order, which must be the epoch's."""
    samples = samples[np.argsort(samples["batch"], kind="stable")]
    begins = np.flatnonzero(np.diff(samples["batch"], prepend=-1))
    lengths = np.diff(begins, append=len(samples))
    last = begins + lengths - 1
    return PlannedBatches(samples, np.repeat(np.arange(len(begins)), lengths), samples["last"][last], last)


@dataclass(frozen=True)
class BucketPlan:
    """Plan of one epoch's batches, each of which takes samples of a single bucket (range of image shapes)."""

    order: EpochOrder
    live: LiveRecords
    table: BucketTable = field(repr=False)
    divisions: Sequence[Division] = field(repr=False)

    def start(self, batches: int) -> int:
        """Return the minimum number of samples, counted from the epoch's start, that complete ``batches`` batches."""
        if not batches:
            return 0
        samples, whole = range(self.order.records), sum(len(division.ends) for division in self.divisions)
        guess, width = self.order.records * batches // whole, _NEAR
        while True:
            low, high = max(guess - width, 0), min(guess + width, len(samples))
            found = bisect.bisect_left(samples, batches, low, high, key=self.complete)
            if low < found < high or width > len(samples):
                return found
            width *= 16

    def complete(self, sample: int) -> int:
        """Return the number of batches whose last sample comes before sample ``sample`` of the epoch."""
        counts = self._counts.before(sample).tolist()
        return sum(division.complete(count) for division, count in zip(self.divisions, counts, strict=True))

    def chunks(self, start: int = 0) -> Iterator[PlannedBatches]:
        """Yield the epoch from sample ``start`` on in chunks; a batch is complete only in its last sample's chunk."""
        numbers, seen = np.zeros(0, dtype=np.int64), np.zeros(len(self.divisions), dtype=np.int64)
        if start:
            counts = zip(self.divisions, self._counts.before(start).tolist(), strict=True)
            begins = [division.begin(count) for division, count in counts]
            numbers, seen = self._counts.since(np.array(begins), start)
        waiting = _group(self._locate(numbers, seen)).waiting
        for begin in range(start, self.order.records, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, self.order.records))
            planned = _group(np.concatenate((waiting, self._locate(numbers, seen))))
            yield planned
            waiting = planned.waiting

    @cached_property
    def _counts(self) -> BucketCounts:
        return BucketCounts(self.order, self.table)

    def _locate(self, numbers: I64, seen: I64) -> Table:
        """Return a row of _SAMPLE for each of the samples ``numbers`` of an epoch, except samples that no batch takes.

        Args:
            seen: (buckets,), number of earlier samples in each bucket; the counts of these samples are added in place.
        """
        located = self.order.locate(numbers)
        bucket = self.table.of(located.container, located.record)
        counts = np.bincount(bucket, minlength=len(seen))
        within = np.empty(len(numbers), dtype=np.int64)
        sorted_ = np.argsort(bucket, kind="stable")
        within[sorted_] = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        within += seen[bucket]
        seen += counts
        samples: Table = np.zeros(len(numbers), dtype=_SAMPLE)
        samples["number"], samples["container"], samples["lane"] = numbers, located.container, located.lane
        samples["record"] = self.live.to_record_numbers(located.container, located.record)
        samples["end"] = located.end
        samples["batch"] = -1
        for number in np.flatnonzero(counts).tolist():
            mine, ends, plans = bucket == number, self.divisions[number].ends, self.divisions[number].plans
            if not len(ends):
                continue
            batch = np.searchsorted(ends, within[mine], side="right")
            # Samples after the bucket's last batch, which ``drop_last`` leaves out, belong to no batch.
            index = np.minimum(batch, len(ends) - 1)
            samples["last"][mine] = within[mine] == ends[index] - 1
            samples["size"][mine] = ends[index] - np.where(index > 0, ends[index - 1], 0)
            samples["plan"][mine] = plans[index]
            samples["batch"][mine] = np.where(batch == index, (number << _BATCH_BITS) + batch, -1)
        return samples[samples["batch"] >= 0]
