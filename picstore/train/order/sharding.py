"""Rank shards: one rank's samples of an epoch's global batches; rank and world size of a process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from picstore.arrays import I64, Bools
from picstore.errors import UsageError
from picstore.train.order.dealing import Dealing, divide_samples
from picstore.train.order.division import EvenDivision

MIN_LANES = 32  # a batch of 256 then takes 8 records each from 32 lanes


def default_lanes(world_size: int) -> int:
    """The smallest multiple of the world size that is at least MIN_LANES: no lane is shared by ranks."""
    return -(-MIN_LANES // world_size) * world_size


@dataclass(frozen=True, kw_only=True)
class RankShard:
    """A rank's samples of an epoch of ``records`` samples, in global batches of ``batch`` samples.

    Every rank has the same number of batches, none of which is empty. ``drop_last`` leaves out samples that fill no
    batch.
    """

    records: int
    lanes: int  # of the epoch
    batch: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True
    division: EvenDivision = field(init=False, repr=False)
    dealing: Dealing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        check_global_batch(self.batch, self.world_size)
        if self.records < self.world_size:
            raise UsageError(f"{self.records} records are too few for {self.world_size} ranks; use fewer ranks")
        division = EvenDivision(self.records, self.batch, self.world_size, self.drop_last)
        if division.batches == 0:
            raise UsageError(
                f"{self.records} records make no batch of {self.batch} on all {self.world_size} ranks together; "
                "use a smaller batch or drop_last=False"
            )
        object.__setattr__(self, "division", division)
        object.__setattr__(self, "dealing", Dealing(self.lanes, self.world_size))

    @property
    def batches(self) -> int:
        """Batches an epoch."""
        return self.division.batches

    @property
    def samples_of_rank(self) -> int:
        """A rank's part of an epoch's samples, incomplete batch included, rounded up."""
        return -(-self.records // self.world_size)

    def samples(self, batch: int) -> I64:
        """Numbers in the epoch of this rank's samples of a batch, ascending."""
        start, stop, first = self._bounds(batch)
        return self.dealing.find_samples(self.rank, start, stop, records=self.records, first=first)

    def reads(self, samples: I64) -> Bools:
        """Mark the samples whose lanes this rank reads, bool (n,)."""
        return self.dealing.reads(self.rank, samples % self.lanes)

    def weight(self, batch: int) -> float:
        """The weight of this rank's batch, see :attr:`picstore.train.batch.Batch.weight`."""
        start, stop, first = self._bounds(batch)
        share = int(divide_samples(stop - start, self.rank, self.world_size, first=first))
        return self.world_size * share / (stop - start)

    def find(self, sample: int) -> tuple[int, int, int] | None:
        """Rank, batch and slot of a sample of the epoch, the inverse of :meth:`samples`; None if it is left out."""
        batch = self.division.batch_of(sample)
        if batch >= self.batches:
            return None
        start, stop, first = self._bounds(batch)
        lanes, turns = self.dealing.lanes_of(np.arange(start, stop), self.records)
        owners = self.dealing.deal(lanes, turns, first=first)
        rank = int(owners[sample - start])
        return rank, batch, int((owners[: sample - start] == rank).sum())

    def _bounds(self, batch: int) -> tuple[int, int, int]:
        """Start and stop of a batch among the epoch's samples, and the first of the ranks that get one sample more.

        A rank's part has the same size in all whole batches, for programs that are compiled for one size. Of an
        incomplete batch ranks have the samples of their own lanes.
        """
        start, stop = self.division.start(batch), self.division.start(batch + 1)
        return start, stop, 0 if stop - start == self.batch else start


def find_rank(rank: int | None, world_size: int | None, environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Rank and world size of this process: the arguments, else torch.distributed's, else the environment's, else 0, 1.

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
        raise UsageError(f"rank {rank} of world size {world_size}; give a rank from 0 to world size - 1")


def check_global_batch(batch: int, world_size: int) -> None:
    """Raise UsageError unless every rank has a sample of a global batch."""
    if batch < world_size:
        raise UsageError(f"a global batch of {batch} leaves some of {world_size} ranks without a sample; give more")


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
