"""Rank shards: the samples of an epoch, and the number of batches, of one rank; rank and world size of a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError

MIN_LANES = 32  # a batch of 256 then takes 8 records each from 32 lanes


def default_lanes(world_size: int) -> int:
    """The smallest multiple of the world size that is at least MIN_LANES."""
    return -(-MIN_LANES // world_size) * world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShard:
    """A rank's samples of an epoch of ``records`` samples, in batches; every rank has the same number of batches.

    ``drop_last`` leaves out samples that fill no batch. Otherwise every sample is in one batch, and last batches may be
    smaller but are never empty; with a ``batch_size`` of 1 the last batch of some ranks may hold 2.
    """

    records: int
    lanes: int  # of the epoch; a multiple of ``world_size``, or 1 when the stored order is read
    batch_size: int  # of this rank
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size {self.batch_size}; at least 1 is needed")
        check_rank(self.rank, self.world_size)
        if self.shuffle:
            check_lanes(self.lanes, self.world_size)
        if self.records < self.world_size:
            raise UsageError(f"{self.records} records are too few for {self.world_size} ranks; use fewer ranks")
        if self.batches == 0:
            raise UsageError(
                f"{self.records} records make no batch of {self.batch_size} on {self.world_size} ranks; "
                "use a smaller batch_size or drop_last=False"
            )

    @property
    def count(self) -> int:
        """Samples of the epoch that this rank has; the counts of two ranks differ by one at most."""
        if not self.shuffle:
            return (self.rank + 1) * self.records // self.world_size - self.rank * self.records // self.world_size
        base, longer = divmod(self.records, self.lanes)
        return base * (self.lanes // self.world_size) + len(range(self.rank, longer, self.world_size))

    @property
    def batches(self) -> int:
        """Batches an epoch, the same on every rank."""
        fewest, most = self.records // self.world_size, -(-self.records // self.world_size)
        if self.drop_last:
            return fewest // self.batch_size
        return min(-(-most // self.batch_size), fewest)

    def bounds(self, batch: int) -> tuple[int, int]:
        """Start and stop of a batch among the rank's samples, counted from its first."""
        return self._start(batch), self._start(batch + 1)

    def _start(self, batch: int) -> int:
        if self.drop_last:
            return batch * self.batch_size
        left = self.batches - batch
        if left == 0:
            return self.count
        # A rank that has one sample less than others may have none left for the last batch: it keeps one for each.
        return min(batch * self.batch_size, self.count - left)

    def samples(self, start: int, stop: int) -> I64:
        """Numbers in the epoch of this rank's samples ``start`` to ``stop``."""
        k = np.arange(start, stop, dtype=np.int64)
        if not self.shuffle:
            return self.rank * self.records // self.world_size + k
        return k * self.world_size + self.rank

    def find(self, sample: int) -> tuple[int, int, int] | None:
        """Rank, batch and slot of a sample of the epoch, the inverse of :meth:`samples`; None if it is left out."""
        if self.shuffle:
            k, rank = divmod(sample, self.world_size)
        else:
            rank = ((sample + 1) * self.world_size - 1) // self.records
            k = sample - rank * self.records // self.world_size
        shard = replace(self, rank=rank)
        batch = min(k // self.batch_size, shard.batches - 1)
        start, stop = shard.bounds(batch)
        if k >= stop and batch + 1 < shard.batches:  # the last batch took a sample of the one before
            batch, (start, stop) = batch + 1, shard.bounds(batch + 1)
        return (rank, batch, k - start) if start <= k < stop else None


def find_rank(rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and world size of this process: the arguments, those of torch.distributed, of the environment, or 0 and 1.

    UsageError if one of the two is missing, no integer or out of range.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size belong together: give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _distributed_rank() or _environment_rank(environment)
    check_rank(rank, world_size)
    return rank, world_size


def check_rank(rank: int, world_size: int) -> None:
    """Raise UsageError unless ``rank`` is one of ``world_size`` ranks."""
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} of world size {world_size}; ranks are 0 to world size - 1")


def check_lanes(lanes: int, world_size: int) -> None:
    """Raise UsageError unless ``world_size`` ranks have the same number of lanes."""
    if lanes < 1 or lanes % world_size:
        raise UsageError(
            f"{lanes} lanes cannot be shared by {world_size} ranks; use a multiple such as {default_lanes(world_size)}"
        )


def _distributed_rank() -> tuple[int, int] | None:
    from torch import distributed  # which the loader's process does without

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
