"""The batches of an epoch whose records are in buckets: which samples each has, and on which rank.

Batch q of a bucket has the samples of the bucket from ``ends[q - 1]`` to ``ends[q]``, counted in the order of the
epoch. It is complete with the last of them, and the batches of all buckets come in the order in which they are
complete. ``dealing.py`` deals a batch's samples to the ranks. docs/order-batches.md has the rules.

An epoch is gone through in chunks, so memory does not grow with the records: what is carried from chunk to chunk are
the samples of batches that are not complete. It may be entered at any sample: these follow from how many samples of
each bucket came before.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from picstore.arrays import I64, Bools, Table
from picstore.storage.edits.tombstones import LiveRecords
from picstore.train.order.bucket_table import BucketCounts, BucketTable
from picstore.train.order.dealing import Dealing, divide_samples, keep_own
from picstore.train.order.division import Division
from picstore.train.order.epoch import EpochOrder

_CHUNK = 1 << 14  # samples at a time
_NEAR = 1 << 11  # samples from where a batch is looked for
_BATCH_BITS = 40  # of a batch's name, below its bucket
# A sample: its number in the epoch, container, record, lane, the last sample of its lane from the container, its batch,
# the samples in that, its plan, and whether it is the batch's last.
_SAMPLE = np.dtype(
    [(name, "<i8") for name in ("number", "container", "record", "lane", "end", "batch", "size", "plan")]
    + [("last", "?")]
)


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """Samples of an epoch, of which some batches are complete.

    Attributes:
        samples: by batch, and in each in the order of the epoch; incomplete batches included.
        group: (samples,), index of the batch of each.
        complete: bool (batches,).
        last: (batches,), index of the last sample of each.
    """

    samples: Table
    group: I64
    complete: Bools
    last: I64

    @property
    def waiting(self) -> Table:
        """The samples of batches that are not complete."""
        return self.samples[~self.complete[self.group]]

    def owners(self, dealing: Dealing) -> I64:
        """Find the rank of each sample, (samples,); -1 in a shared lane until the sample's batch is complete."""
        first, last = dealing.find_readers(self.samples["lane"])
        owners = keep_own(first, last, divide_samples(self.samples["size"], first, dealing.world_size), self.group)
        begins = np.append(0, self.last + 1)
        for number in np.unique(self.group[(owners < 0) & self.complete[self.group]]).tolist():
            mine = slice(int(begins[number]), int(begins[number + 1]))
            shares = divide_samples(mine.stop - mine.start, np.arange(dealing.world_size), dealing.world_size)
            dealing.deal_rest(owners[mine], (first[mine], last[mine]), shares)
        return owners


def _group(samples: Table) -> PlannedBatches:
    """Sort samples, which are in the order of the epoch, by batch."""
    samples = samples[np.argsort(samples["batch"], kind="stable")]
    begins = np.flatnonzero(np.diff(samples["batch"], prepend=-1))
    lengths = np.diff(begins, append=len(samples))
    last = begins + lengths - 1
    return PlannedBatches(samples, np.repeat(np.arange(len(begins)), lengths), samples["last"][last], last)


@dataclass(frozen=True)
class BucketPlan:
    """The batches of one epoch.

    Attributes:
        order: of its samples.
        live: the records.
        table: their buckets.
        divisions: by bucket.
    """

    order: EpochOrder
    live: LiveRecords
    table: BucketTable = field(repr=False)
    divisions: Sequence[Division] = field(repr=False)

    def start(self, batches: int) -> int:
        """Find the sample before which ``batches`` batches are complete; the sample before it completes the last."""
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
        """Count the batches that are complete before a sample."""
        counts = self._counts.before(sample).tolist()
        return sum(division.complete(count) for division, count in zip(self.divisions, counts, strict=True))

    def chunks(self, start: int = 0) -> Iterator[PlannedBatches]:
        """Go through the epoch from a sample on; every batch is complete in one chunk."""
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
        """Find records and batches of samples; ``seen`` counts the samples of each bucket, and is moved on."""
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
            index = np.minimum(batch, len(ends) - 1)  # samples after the last batch are left out
            samples["last"][mine] = within[mine] == ends[index] - 1
            samples["size"][mine] = ends[index] - np.where(index > 0, ends[index - 1], 0)
            samples["plan"][mine] = plans[index]
            samples["batch"][mine] = np.where(batch == index, (number << _BATCH_BITS) + batch, -1)
        return samples[samples["batch"] >= 0]
