"""The division of an epoch into global batches, which all ranks make together, of a size that no rank count changes.

With ``drop_last`` samples that fill no batch are left out. Otherwise every sample is in one batch. The last batch then
has at least half of the usual samples, which it takes from the batch before: so no rank's part of it is empty at any
world size that has two samples or more on each rank. Where ranks have one sample each, a last batch that is too small
for them joins the batch before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from picstore import rng
from picstore.arrays import I64, Array


def least_of_last(size: int) -> int:
    """Samples that a last batch has at least, where usual ones have ``size``."""
    return size // 2


@dataclass(frozen=True)
class EvenDivision:
    """Batches of ``size`` samples of ``samples`` in all, as arithmetic."""

    samples: int
    size: int
    world_size: int
    drop_last: bool

    @cached_property
    def batches(self) -> int:
        """Number of batches."""
        full, rest = divmod(self.samples, self.size)
        if self.drop_last or not rest:
            return full
        return full if full and max(rest, least_of_last(self.size)) < self.world_size else full + 1

    def start(self, batch: int) -> int:
        """Number of the first sample of a batch; after the last batch as if others of the usual size followed."""
        usual, least = batch * self.size, least_of_last(self.size)
        if self.drop_last or batch < self.batches - 1:
            return usual
        if batch >= self.batches:
            return self.samples + (batch - self.batches) * self.size
        return usual if self.samples - usual >= least else max(0, self.samples - least)

    def batch_of(self, sample: int) -> int:
        """Number of the batch that holds a sample, the inverse of :meth:`start`."""
        end = self.start(self.batches)
        if sample >= end:
            return self.batches + (sample - end) // self.size
        batch = min(sample // self.size, self.batches - 1)
        return batch + 1 if batch + 1 < self.batches and sample >= self.start(batch + 1) else batch


@dataclass(frozen=True, slots=True)
class Division:
    """The batches of a bucket in an epoch: where each ends among the bucket's samples, and its plan; (batches,)."""

    ends: I64
    plans: Array

    def complete(self, count: int) -> int:
        """The number of batches that ``count`` samples complete."""
        return int(np.searchsorted(self.ends, count, side="right"))

    def begin(self, count: int) -> int:
        """The start of the batch that is next after ``count`` samples; ``count`` after the last batch."""
        batch = self.complete(count)
        if batch == len(self.ends):
            return count
        return int(self.ends[batch - 1]) if batch else 0


def divide(count: int, sizes: Sequence[int], keys: tuple[int, int], *, world_size: int, drop_last: bool) -> Division:
    """Divide the ``count`` samples of a bucket into global batches, of the same number in all epochs.

    Args:
        sizes: of a global batch by plan. Of several, one is drawn for each batch by the first key, until the samples
            are used up. The second permutes them, so that epochs have the same ones.
        keys: one that all epochs share, and one of the epoch.
        world_size: ranks that share a batch.
        drop_last: leave out samples that fill no batch.
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
