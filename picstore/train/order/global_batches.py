"""Global batches: the division of an epoch into batches that all ranks make together, and a rank's shard of them.

The number of ranks changes no global batch, except as the last sentence says. With ``drop_last``, samples that do not
fill a batch are left out. Otherwise every sample is in one batch. The last batch then has at least half of the usual
size, and takes missing samples from the previous batch. So no rank's part is empty if whole batches have at least 2 W
samples for W ranks. With smaller batches, a last batch of fewer than W samples joins the previous batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from picstore import rng
from picstore.arrays import I64, Array, Bools
from picstore.errors import UsageError, counted
from picstore.train.order.rank_shares import RankShares, check_rank, divide_samples


def least_of_last(size: int) -> int:
    """Return the minimum number of samples in an incomplete last batch, if whole batches have ``size`` samples."""
    return size // 2


@dataclass(frozen=True)
class EvenDivision:
    """Division of an epoch of ``samples`` samples into global batches of ``size`` samples."""

    samples: int
    size: int
    world_size: int
    drop_last: bool

    @cached_property
    def batches(self) -> int:
        """Number of global batches in an epoch."""
        full, rest = divmod(self.samples, self.size)
        if self.drop_last or not rest:
            return full
        return full if full and max(rest, least_of_last(self.size)) < self.world_size else full + 1

    def start(self, batch: int) -> int:
        """Return the index of a batch's first sample, as if full batches followed the epoch's last batch."""
        usual, least = batch * self.size, least_of_last(self.size)
        if self.drop_last or batch < self.batches - 1:
            return usual
        if batch >= self.batches:
            return self.samples + (batch - self.batches) * self.size
        return usual if self.samples - usual >= least else max(0, self.samples - least)

    def starts(self, batches: I64) -> I64:
        """Return :meth:`start` of each of ``batches``, which are indices from 0 to the number of batches."""
        starts = batches * self.size
        for batch in (self.batches - 1, self.batches):
            starts[batches == batch] = self.start(batch)
        return starts

    def batch_of(self, sample: int) -> int:
        """Return the index of the batch that holds sample ``sample``; the inverse of :meth:`start`."""
        end = self.start(self.batches)
        if sample >= end:
            return self.batches + (sample - end) // self.size
        batch = min(sample // self.size, self.batches - 1)
        return batch + 1 if batch + 1 < self.batches and sample >= self.start(batch + 1) else batch


@dataclass(frozen=True, slots=True)
class Division:
    """Batches into which the samples of a bucket (a range of image shapes) are divided in an epoch."""

    ends: I64  # (batches,), number of the bucket's samples in the epoch up to the end of each batch
    plans: Array  # (batches,), index of each batch's plan (list of transforms)

    def complete(self, count: int) -> int:
        """Return the number of batches that are complete after the bucket's first ``count`` samples."""
        return int(np.searchsorted(self.ends, count, side="right"))

    def begin(self, count: int) -> int:
        """Return the first sample of the batch that holds sample ``count``, or ``count`` if no batch holds it.

        A sample is given by its index among the bucket's samples in the epoch.
        """
        batch = self.complete(count)
        if batch == len(self.ends):
            return count
        return int(self.ends[batch - 1]) if batch else 0


def divide(count: int, sizes: Sequence[int], keys: tuple[int, int], *, world_size: int, drop_last: bool) -> Division:
    """Divide the ``count`` samples of a bucket into global batches: the same sizes in all epochs, in different orders.

    Args:
        sizes: size of a global batch for each plan (list of transforms).
        keys: two random keys: the first, the same in all epochs, draws a plan for each batch; the epoch's own key
            permutes the drawn plans.
        drop_last: whether to leave out samples that do not fill a batch.
    """
    whole = np.array(sizes)
    drawn: Array
    if len(sizes) == 1:
        full = count // int(whole[0])
        drawn = np.zeros(full + 1, dtype=np.int16)
        plans, ends = drawn[:full], np.arange(whole[0], full * whole[0] + 1, whole[0])
    else:
        drawn = rng.below(keys[0], np.arange(count // int(whole.min()) + 1), len(sizes))
        full = int(np.searchsorted(np.cumsum(whole[drawn]), count, side="right"))
        plans = drawn[:full][rng.permutation(keys[1], full)]
        ends = np.cumsum(whole[plans])
    rest, least = count - int(ends[-1]) if full else count, least_of_last(int(whole.min()))
    if drop_last or not rest:
        return Division(ends, plans)
    if full and max(rest, least) < world_size:
        ends[-1] = count
        return Division(ends, plans)
    if full:
        ends[-1] -= max(0, least - rest)
    return Division(np.append(ends, count), np.append(plans, drawn[full]))


@dataclass(frozen=True, kw_only=True)
class RankShard:
    """One rank's share of an epoch of ``records`` samples, in global batches of ``batch`` samples.

    Every rank has the same number of batches, none of them empty.
    """

    records: int
    lanes: int
    batch: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True
    division: EvenDivision = field(init=False, repr=False)
    rank_shares: RankShares = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        check_global_batch(self.batch, self.world_size)
        if self.records < self.world_size:
            text = f"{counted(self.records, 'record', 'are')} too few for {counted(self.world_size, 'rank')}"
            raise UsageError(f"{text}; use fewer ranks")
        division = EvenDivision(self.records, self.batch, self.world_size, self.drop_last)
        if division.batches == 0:
            ranks = f" on all {self.world_size} ranks together" if self.world_size > 1 else ""
            text = f"{counted(self.records, 'record', 'make')} no batch of {self.batch}{ranks}"
            raise UsageError(f"{text}; use a smaller batch or drop_last=False")
        object.__setattr__(self, "division", division)
        object.__setattr__(self, "rank_shares", RankShares(self.lanes, self.world_size))

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        return self.division.batches

    @property
    def samples_of_rank(self) -> int:
        """A rank's number of samples in an epoch, incomplete batches included: all samples / world size, rounded up."""
        return -(-self.records // self.world_size)

    def samples(self, batch: int) -> I64:
        """Return the samples that this rank takes of a global batch, as ascending indices in the epoch."""
        start, stop, first = self._bounds(batch)
        return self.rank_shares.find_samples(self.rank, start, stop, records=self.records, first=first)

    def reads(self, samples: I64) -> Bools:
        """Return whether this rank reads the lane (part of an epoch that batches mix) of each sample, bool (n,)."""
        return self.rank_shares.reads(self.rank, samples % self.lanes)

    def weight(self, batch: int) -> float:
        """Return the weight of this rank's batch, as in :attr:`picstore.train.batch.Batch.weight`."""
        start, stop, first = self._bounds(batch)
        share = int(divide_samples(stop - start, self.rank, self.world_size, first=first))
        return self.world_size * share / (stop - start)

    def _bounds(self, batch: int) -> tuple[int, int, int]:
        """Return the start and stop of a global batch in the epoch, and the first rank that gets a leftover sample.

        In a whole batch this rank is 0, so that each rank's share always has one size, for compiled programs. In an
        incomplete batch it is ``start`` modulo the world size, so that ranks get samples of lanes that they read.
        """
        start, stop = self.division.start(batch), self.division.start(batch + 1)
        return start, stop, 0 if stop - start == self.batch else start


def check_global_batch(batch: int, world_size: int) -> None:
    """Raise UsageError if a global batch has fewer samples than there are ranks."""
    if batch < world_size:
        raise UsageError(
            f"a global batch of {batch} leaves some of {counted(world_size, 'rank')} without a sample; give more"
        )
