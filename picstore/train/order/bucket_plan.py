"""The batches of an epoch whose records are in buckets: which samples each has, and on which rank.

Batch q of a bucket has the samples of the bucket from ``ends[q - 1]`` to ``ends[q]``, counted in the order of the
epoch. It is complete with the last of them, and the batches of all buckets come in the order in which they are
complete. A sample is made on the rank that reads its lane. Where a rank has more samples of a batch than its share, the
last of them go to the ranks that have fewer. docs/training.md has the rules.

An epoch is gone through in chunks, so memory does not grow with the records: what is carried from chunk to chunk are
the samples of batches that are not complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from picstore import rng
from picstore.arrays import I64, U8, Bools, Table
from picstore.storage.edits.tombstones import LiveRecords
from picstore.train.order.epoch import EpochOrder

_CHUNK = 1 << 16  # samples at a time
_BATCH_BITS = 40  # of a batch's name, below its bucket
# A sample: its number in the epoch, container, record, lane, the last sample of its lane from the container, its batch,
# the samples in that, its plan, and whether it is the batch's last.
_SAMPLE = np.dtype(
    [(name, "<i8") for name in ("number", "container", "record", "lane", "end", "batch", "size", "plan")]
    + [("last", "?")]
)


@dataclass(frozen=True, slots=True)
class Division:
    """The batches of a bucket in an epoch: where each ends among the bucket's samples, and its plan; (batches,)."""

    ends: I64
    plans: I64


def divide(count: int, sizes: Sequence[int], keys: tuple[int, int], *, ranks: int, drop_last: bool) -> Division:
    """Divide the ``count`` samples of a bucket into global batches.

    Args:
        sizes: of a rank's batch by plan. Of several, one is drawn for each batch by the first key, until the samples
            are used up. The second permutes them, so that epochs have the same ones.
        keys: one that all epochs share, and one of the epoch.
        ranks: that share a batch.
        drop_last: leave out the rest. Otherwise a last batch has it, and at least one sample for each rank, for which
            the one before may have less.
    """
    whole = ranks * np.array(sizes)
    drawn = rng.below(keys[0], np.arange(count // int(whole.min()) + 1), len(sizes))
    full = int(np.searchsorted(np.cumsum(whole[drawn]), count, side="right"))
    plans = drawn[:full][rng.permutation(keys[1], full)] if len(sizes) > 1 else drawn[:full]
    ends = np.cumsum(whole[plans])
    rest = count - int(ends[-1]) if full else count
    if not drop_last and rest:
        spare = int(whole[plans[-1]]) - ranks if full else 0
        lacking = max(ranks - rest, 0)
        if lacking <= spare:
            ends[-1:] -= lacking
            ends, plans = np.append(ends, count), np.append(plans, drawn[full])
        else:
            ends[-1] = count
    return Division(ends, plans)


@dataclass(frozen=True, slots=True)
class PlannedBatches:
    """Samples of an epoch, of which some batches are complete.

    Attributes:
        samples: by batch, and in each in the order of the epoch; those of batches that are not complete too.
        group: (samples,), index of the batch of each.
        complete: bool (batches,).
        last: (batches,), index of the last sample of each.
    """

    samples: Table
    group: I64
    complete: Bools
    last: I64

    def owners(self, ranks: int) -> I64:
        """Find the rank of each sample, (samples,); -1 for those that wait for their batch to tell."""
        mine = self.samples["lane"] % ranks
        if ranks == 1:
            return mine
        cell = self.group * ranks + mine  # the samples of a batch that a rank reads
        order = np.argsort(cell, kind="stable")
        begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
        earlier = np.empty(len(cell), dtype=np.int64)
        earlier[order] = np.arange(len(cell)) - np.repeat(begins, np.diff(begins, append=len(cell)))
        share = _share(self.samples["size"], mine, ranks)
        owner: I64 = np.where(earlier < share, mine, -1)
        shares = _share(self.samples["size"][self.last][:, None], np.arange(ranks), ranks)
        kept = np.bincount(cell[owner >= 0], minlength=shares.size).reshape(shares.shape)
        missing = np.where(self.complete[:, None], shares - kept, 0)
        spare = (owner < 0) & self.complete[self.group]
        owner[spare] = np.repeat(np.tile(np.arange(ranks), len(shares)), missing.reshape(-1))
        return owner


def _share(size: I64, rank: I64, ranks: int) -> I64:
    """Samples of a rank in batches of ``size``."""
    share: I64 = size // ranks + (rank < size % ranks)
    return share


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The batches of one epoch.

    Attributes:
        order: of its samples.
        live: the records.
        buckets: uint8 (records,), of each live record.
        divisions: by bucket.
    """

    order: EpochOrder
    live: LiveRecords
    buckets: U8 = field(repr=False)
    divisions: Sequence[Division] = field(repr=False)

    def chunks(self) -> Iterator[PlannedBatches]:
        """Go through the epoch; every batch is complete in one chunk."""
        firsts = np.cumsum(self.live.counts) - self.live.counts
        seen = np.zeros(len(self.divisions), dtype=np.int64)
        waiting = np.zeros(0, dtype=_SAMPLE)
        for start in range(0, self.order.records, _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, self.order.records))
            samples = np.concatenate((waiting, self._locate(numbers, firsts, seen)))
            samples = samples[np.argsort(samples["batch"], kind="stable")]
            begins = np.flatnonzero(np.diff(samples["batch"], prepend=-1))
            lengths = np.diff(begins, append=len(samples))
            last = begins + lengths - 1
            planned = PlannedBatches(samples, np.repeat(np.arange(len(begins)), lengths), samples["last"][last], last)
            yield planned
            waiting = samples[~planned.complete[planned.group]]

    def _locate(self, numbers: I64, firsts: I64, seen: I64) -> Table:
        """Find records and batches of samples; ``seen`` counts the samples of each bucket, and is moved on."""
        located = self.order.locate(numbers)
        bucket = self.buckets[firsts[located.container] + located.record]
        counts = np.bincount(bucket, minlength=len(seen))
        within = np.empty(len(numbers), dtype=np.int64)
        sorted_ = np.argsort(bucket, kind="stable")
        within[sorted_] = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        within += seen[bucket]
        seen += counts
        samples: Table = np.zeros(len(numbers), dtype=_SAMPLE)
        samples["number"], samples["container"], samples["lane"] = numbers, located.container, located.lane
        samples["record"] = self.live.to_record_numbers(located.container, located.record)
        samples["end"] = self.order.run_ends(numbers)
        samples["batch"] = -1
        for number in np.flatnonzero(counts).tolist():
            mine, ends, plans = bucket == number, self.divisions[number].ends, self.divisions[number].plans
            batch = np.searchsorted(ends, within[mine], side="right")
            stops = np.concatenate((ends, [0]))[batch]  # 0 for samples that are left out
            samples["last"][mine] = within[mine] == stops - 1
            samples["size"][mine] = stops - np.concatenate(([0], ends))[batch]
            samples["plan"][mine] = np.append(plans, -1)[batch]
            samples["batch"][mine] = np.where(stops, (number << _BATCH_BITS) + batch, -1)
        return samples[samples["batch"] >= 0]
