"""How ranks share the lanes of an epoch, and the samples of a global batch: one rule for all orders.

Each rank reads as many whole lanes as the lanes divided by the ranks, rounded down. The lanes that remain are shared:
ranks in turn have equal parts of them, so a rank reads parts of two shared lanes at most. W ranks and L lanes make
L + W - gcd(L, W) readers of lanes. Where W divides L no lane is shared.

The ranks' shares of a global batch differ by one at most. A rank takes the samples of its whole lanes, up to its share.
Samples of shared lanes go to the lanes' readers that lack samples, lowest rank first. The samples that remain go to the
ranks that still lack some. A rank that is given a sample of a lane that it does not read reads the record alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from picstore.arrays import I64, Bools
from picstore.errors import UsageError

MAX_LANES = 1 << 16


@dataclass(frozen=True)
class Dealing:
    """The lanes of an epoch, and the ranks that share them."""

    lanes: int
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= MAX_LANES:
            raise UsageError(f"lanes is {self.lanes}; give 1 to {MAX_LANES:,}")

    @property
    def shared(self) -> int:
        """Lanes that several ranks read: the last ones."""
        return self.lanes % self.world_size

    @property
    def readers(self) -> int:
        """Readers of all lanes together: at most the lanes and the ranks."""
        return self.lanes + (self.world_size - math.gcd(self.lanes, self.world_size) if self.shared else 0)

    def count_lanes(self, rank: int) -> int:
        """Lanes that a rank reads, whole or in part."""
        first, last = self._shared_readers
        return self.lanes // self.world_size + int(((first <= rank) & (rank <= last)).sum())

    def find_readers(self, lanes: I64, turns: I64 | int = 0) -> tuple[I64, I64]:
        """Find the first and the last rank that reads each lane, int64 (n,); the ranks between read it too.

        ``turns`` are added to the ranks of lanes that are read by one rank.
        """
        rank = (lanes + turns) % self.world_size
        if not self.shared:
            return rank, rank
        number = lanes - (self.lanes - self.shared)
        first, last = (each[np.maximum(number, 0)] for each in self._shared_readers)
        return np.where(number < 0, rank, first), np.where(number < 0, rank, last)

    def find_samples(self, rank: int, start: int, stop: int, *, records: int, first: int = 0) -> I64:
        """Find a rank's samples of a global batch of an order that goes on from epoch to epoch of ``records`` samples.

        Args:
            start, stop: the samples of the global batch, numbered through all epochs.
            first: see :func:`divide_samples`.

        Returns:
            Their numbers, int64 (share,), ascending.
        """
        if not self.shared and not start % self.world_size and not stop % self.world_size:
            return np.arange(start + rank, stop, self.world_size)  # lanes in turn are the ranks' in turn
        numbers = np.arange(start, stop)
        mine: I64 = numbers[self.deal(*self.lanes_of(numbers, records), first=first) == rank]
        return mine

    def lanes_of(self, numbers: I64, records: int) -> tuple[I64, I64]:
        """Find the lanes of samples that are numbered through all epochs, and their turns: int64 (n,) each.

        Where no lane is shared, the sample of number t is of a lane of rank t mod W, in every epoch.
        """
        epoch, index = np.divmod(numbers, records)
        return index % self.lanes, epoch * records % self.world_size

    def deal(self, lanes: I64, turns: I64, *, first: int = 0) -> I64:
        """Find the rank of each sample of a global batch, (n,), given the lanes and turns of its samples in order.

        ``first``: see :func:`divide_samples`.
        """
        if self.world_size == 1:
            return np.zeros(len(lanes), dtype=np.int64)
        shares = divide_samples(len(lanes), np.arange(self.world_size), self.world_size, first=first)
        readers = self.find_readers(lanes, turns)
        return self.deal_rest(keep_own(*readers, shares[readers[0]]), readers, shares)

    def deal_rest(self, owners: I64, readers: tuple[I64, I64], shares: I64) -> I64:
        """Give the samples of a global batch that have no owner yet to ranks that lack samples.

        Args:
            owners: of samples in order, −1 for none; it is changed, and returned.
            readers: first and last reader of their lanes.
            shares: samples of each rank, int64 (world size,).
        """
        left = shares - np.bincount(owners[owners >= 0], minlength=self.world_size)
        shared = np.flatnonzero(readers[0] < readers[1])
        for low, high in zip(*(each.tolist() for each in self._shared_readers), strict=True):
            lane = shared[readers[0][shared] == low]
            taken = np.diff(np.minimum(np.cumsum(left[low : high + 1]), len(lane)), prepend=0)
            owners[lane[: taken.sum()]] = np.repeat(np.arange(low, high + 1), taken)
            left[low : high + 1] -= taken
        owners[owners < 0] = np.repeat(np.arange(self.world_size), left)
        return owners

    def reads(self, rank: int, lanes: I64, turns: I64 | int = 0) -> Bools:
        """Mark the lanes that a rank reads, bool (n,); ``turns``: see :meth:`find_readers`."""
        first, last = self.find_readers(lanes, turns)
        marks: Bools = (first <= rank) & (rank <= last)
        return marks

    @cached_property
    def _shared_readers(self) -> tuple[I64, I64]:
        """First and last reader of each shared lane, int64 (shared,)."""
        number, ranks, shared = np.arange(self.shared), self.world_size, max(self.shared, 1)
        return number * ranks // shared, ((number + 1) * ranks - 1) // shared


def divide_samples(samples: I64 | int, rank: I64 | int, world_size: int, *, first: I64 | int = 0) -> I64:
    """Compute a rank's share of a global batch; from rank ``first`` on, ranks in turn get the samples left over."""
    turn = (np.asarray(rank) - first) % world_size
    share: I64 = np.asarray(samples) // world_size + (turn < np.asarray(samples) % world_size)
    return share


def keep_own(first: I64, last: I64, shares: I64, group: I64 | int = 0) -> I64:
    """Give samples of lanes with one reader to it, up to its share: the rank of each sample, −1 for the others.

    Args:
        first, last: readers of the samples' lanes, in order, int64 (n,).
        shares: of each sample's first reader in its global batch, int64 (n,).
        group: number of each sample's global batch, int64 (n,), or one number for all.
    """
    own = np.flatnonzero(first == last)
    cell = (group * (int(first.max(initial=0)) + 1) + first)[own]
    # Numbers of 16 bits are sorted in one pass over them.
    order = np.argsort(cell.astype(np.min_scalar_type(int(cell.max(initial=0)))), kind="stable")
    begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
    earlier = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept = own[order[earlier < shares[own[order]]]]
    owners = np.full(len(first), -1, dtype=np.int64)
    owners[kept] = first[kept]
    return owners
