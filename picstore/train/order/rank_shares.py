"""How ranks share the lanes of an epoch and the samples of a global batch, and which rank this process is.

One rule holds for all orders. Each rank reads L // W whole lanes, with L lanes and W ranks. The remaining lanes are
shared: ranks in turn have equal parts of them, so a rank reads parts of two shared lanes at most. All ranks together
then read L + W - gcd(L, W) lanes, whole or in part. If W divides L, no lane is shared.

The ranks' shares of a global batch differ by one sample at most. A rank takes the samples of its whole lanes, up to its
share. Samples of a shared lane go to those of the lane's readers that lack samples, lowest rank first. The remaining
samples go to the ranks that still lack samples. If a rank gets a sample of a lane that it does not read, it reads the
record alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from picstore.arrays import I64, Bools
from picstore.errors import UsageError

MAX_LANES = 1 << 16
# Default number of lanes of all sources together, before rounding: a batch of 256 then has 8 records of each lane.
MIN_LANES = 32


@dataclass(frozen=True)
class RankShares:
    """Rule by which ``world_size`` ranks share the lanes (parts of an epoch) and the samples of an epoch."""

    lanes: int
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= MAX_LANES:
            raise UsageError(f"lanes is {self.lanes}; give 1 to {MAX_LANES:,}")

    @property
    def shared(self) -> int:
        """Number of lanes (parts of an epoch that batches mix) that several ranks share; they are the last lanes."""
        return self.lanes % self.world_size

    def count_lanes(self, rank: int) -> int:
        """Return the number of lanes (parts of an epoch that batches mix) that a rank reads, whole or in part."""
        first, last = self._shared_readers
        return self.lanes // self.world_size + int(((first <= rank) & (rank <= last)).sum())

    def find_readers(self, lanes: I64, turns: I64 | int = 0) -> tuple[I64, I64]:
        """Return the first and last rank that reads each lane, int64 (n,) each; the ranks between them read it too.

        A lane is a part of an epoch; batches mix lanes. A lane with only one reader is read by rank (lane + turn) mod
        world size. An epoch's turn is the number of samples in all earlier epochs, modulo the world size.
        """
        rank = (lanes + turns) % self.world_size
        if not self.shared:
            return rank, rank
        number = lanes - (self.lanes - self.shared)
        first, last = (each[np.maximum(number, 0)] for each in self._shared_readers)
        return np.where(number < 0, rank, first), np.where(number < 0, rank, last)

    def find_samples(self, rank: int, start: int, stop: int, *, records: int, first: int = 0) -> I64:
        """Return the samples that a rank takes of a global batch, int64 (share,), ascending.

        Args:
            start, stop: bounds of the batch's samples, counted through all epochs; ``stop`` is excluded.
            records: number of samples in an epoch.
            first: first rank that gets a leftover sample, see :func:`divide_samples`.
        """
        if not self.shared and not start % self.world_size and not stop % self.world_size:
            # No lane is shared; start and stop are multiples of world_size. A rank takes every world_size-th sample.
            return np.arange(start + rank, stop, self.world_size)
        numbers = np.arange(start, stop)
        mine: I64 = numbers[self.deal(*self.lanes_of(numbers, records), first=first) == rank]
        return mine

    def lanes_of(self, numbers: I64, records: int) -> tuple[I64, I64]:
        """Return the lane of each sample, and the turn of its epoch, see :meth:`find_readers`: int64 (n,) each.

        ``numbers`` count samples through all epochs. If no lane is shared, rank t mod world size reads sample t's lane.
        """
        epoch, index = np.divmod(numbers, records)
        return index % self.lanes, epoch * records % self.world_size

    def deal(self, lanes: I64, turns: I64, *, first: int = 0) -> I64:
        """Return the rank of each sample of a global batch, int64 (n,).

        Args:
            lanes, turns: lane and turn of each sample, in order, see :meth:`lanes_of`.
            first: first rank that gets a leftover sample, see :func:`divide_samples`.
        """
        group, sizes = np.zeros(len(lanes), dtype=np.int64), np.full(len(lanes), len(lanes))
        return self.deal_batches(self.find_readers(lanes, turns), group, sizes, firsts=first)

    def deal_batches(
        self, readers: tuple[I64, I64], group: I64, sizes: I64, *, firsts: I64 | int = 0, whole: Bools | None = None
    ) -> I64:
        """Return the rank of each sample of several global batches, int64 (n,); :meth:`deal` is for one batch.

        Args:
            readers: first and last rank that reads each sample's lane, int64 (n,) each.
            group: index of each sample's batch, ascending, int64 (n,).
            sizes: size of each sample's batch, int64 (n,).
            firsts: first rank that gets a leftover sample, for each sample or for all, see :func:`divide_samples`.
            whole: bool (batches,), whether all samples of a batch are given; None if all batches are whole. In other
                batches, samples to which :func:`keep_own` gives no rank get rank −1.
        """
        if self.world_size == 1:
            return np.zeros(len(group), dtype=np.int64)
        firsts = np.broadcast_to(firsts, group.shape)
        owners = keep_own(*readers, divide_samples(sizes, readers[0], self.world_size, first=firsts), group)
        for number in np.unique(group[owners < 0]).tolist():
            if whole is None or whole[number]:
                mine = slice(*np.searchsorted(group, (number, number + 1)).tolist())
                size, first, ranks = int(sizes[mine.start]), int(firsts[mine.start]), np.arange(self.world_size)
                shares = divide_samples(size, ranks, self.world_size, first=first)
                self.deal_rest(owners[mine], (readers[0][mine], readers[1][mine]), shares)
        return owners

    def deal_rest(self, owners: I64, readers: tuple[I64, I64], shares: I64) -> I64:
        """Give the samples of a global batch that have no rank yet to ranks that have less than their shares.

        Args:
            owners: rank of each sample, or −1, int64 (n,); changed in place and returned.
            readers: first and last rank that reads each sample's lane, int64 (n,) each.
            shares: number of samples that each rank takes of the batch, int64 (world size,).
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
        """Return whether a rank is a reader of each lane, bool (n,); lanes and turns are as in :meth:`find_readers`."""
        first, last = self.find_readers(lanes, turns)
        return (first <= rank) & (rank <= last)

    @cached_property
    def _shared_readers(self) -> tuple[I64, I64]:
        """First and last rank that reads each of the lanes that several ranks share, int64 (shared,) each."""
        number, ranks, shared = np.arange(self.shared), self.world_size, max(self.shared, 1)
        return number * ranks // shared, ((number + 1) * ranks - 1) // shared


def divide_samples(samples: I64 | int, rank: I64 | int, world_size: int, *, first: I64 | int = 0) -> I64:
    """Return the number of samples that a rank takes of a batch; ranks from ``first`` on get one leftover each."""
    turn = (np.asarray(rank) - first) % world_size
    return np.asarray(samples) // world_size + (turn < np.asarray(samples) % world_size)


def keep_own(first: I64, last: I64, shares: I64, group: I64 | int = 0) -> I64:
    """Give each rank the samples of the lanes (parts of an epoch) that it alone reads, up to the rank's share.

    Args:
        first, last: first and last rank that reads each sample's lane, int64 (n,).
        shares: for each sample, the share of rank ``first`` in the sample's global batch, int64 (n,).
        group: index of each sample's global batch, int64 (n,), or one index for all samples.

    Returns:
        The rank of each sample, int64 (n,); −1 if no rank has the sample yet.
    """
    own = np.flatnonzero(first == last)
    cell = (group * (int(first.max(initial=0)) + 1) + first)[own]
    # Use the smallest type, because NumPy sorts integers of at most 16 bits faster, by radix.
    order = np.argsort(cell.astype(np.min_scalar_type(int(cell.max(initial=0)))), kind="stable")
    begins = np.flatnonzero(np.diff(cell[order], prepend=-1))
    earlier = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept = own[order[earlier < shares[own[order]]]]
    owners = np.full(len(first), -1, dtype=np.int64)
    owners[kept] = first[kept]
    return owners


def default_lanes(world_size: int, sources: int = 1) -> int:
    """Return the number of lanes of each source: MIN_LANES // ``sources``, rounded up to a multiple of the world size.

    With a multiple, no two ranks share a lane. Because of the division, memory does not grow with the number of
    sources.
    """
    return -(-max(1, MIN_LANES // sources) // world_size) * world_size


def find_rank(rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the rank and world size of this process.

    The arguments come first, then torch.distributed, then RANK and WORLD_SIZE of the environment, then 0 and 1. Raise
    UsageError if only one of rank and world size is given, or if one of them is not an integer or is out of range.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size belong together: give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _distributed_rank() or _environment_rank(environment)
    check_rank(rank, world_size)
    return rank, world_size


def check_rank(rank: int, world_size: int) -> None:
    """Raise UsageError unless ``rank`` is at least 0 and below ``world_size``."""
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world size {world_size}; give a rank from 0 to world size - 1")


def _distributed_rank() -> tuple[int, int] | None:
    # Imported here, because the loader's process does not need torch.
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _environment_rank(environment: Mapping[str, str]) -> tuple[int, int]:
    rank, world_size = environment.get("RANK"), environment.get("WORLD_SIZE")
    if rank is None and world_size is None:
        return 0, 1
    try:
        return int(rank or ""), int(world_size or "")
    except ValueError as error:
        raise UsageError(
            f"the environment's RANK is {rank!r} and its WORLD_SIZE {world_size!r}; set both to integers or neither, "
            "or give rank and world_size"
        ) from error
