"""Order of a Loader: epoch after epoch of one dataset; a rank makes its share of each global batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import I64
from picstore.errors import UsageError, counted
from picstore.storage.dataset import Dataset
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.rank_shares import RankShares
from picstore.train.order.requests import BatchRequest, OpenRuns, SourceRequest, TrainingSource, Windows, skip_deleted
from picstore.train.order.state_checks import VERSION, check_state, position_in_epochs
from picstore.train.order.weights import RecordShares
from picstore.train.transforms.progressive import EpochStages

# Fields that must be equal in a state and in the loader that loads the state.
_FIXED = ("dataset", "seed", "shuffle", "lanes", "weights")


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """Order of a Loader: epochs of one dataset, shared by ranks; see :class:`Order` and :class:`SteppedOrder`."""

    shard: RankShard
    seed: int
    uuid: str = ""  # identifier of the dataset and its selection
    weights: RecordShares | None = None  # number of samples of each record; None if each has one in an epoch
    stages: EpochStages = field(default_factory=EpochStages)  # stages of a training, each with its own transforms
    shuffle: bool = True  # False keeps the stored order of records in each lane (part of the epoch)

    @property
    def samples_of_rank(self) -> int:
        """A rank's number of samples in an epoch, incomplete batches included: all samples / world size, rounded up."""
        return self.shard.samples_of_rank

    def stage(self, epoch: int) -> int:
        return self.stages.stage(epoch)

    def length(self, epoch: int) -> int:
        return self.shard.batches

    @property
    def rank_shares(self) -> RankShares:
        return self.shard.rank_shares

    @property
    def lanes(self) -> int:
        return self.shard.lanes

    @property
    def lanes_read(self) -> int:
        return self.shard.rank_shares.count_lanes(self.shard.rank)

    def with_lanes(self, lanes: int) -> DatasetOrder:
        return replace(self, shard=replace(self.shard, lanes=lanes))

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        dataset, shard = sources[0].dataset, self.shard
        while True:
            order, runs = self._epoch_order(dataset, epoch), OpenRuns()
            for batch in range(first, shard.batches, max(1, step)):
                numbers = shard.samples(batch)
                samples = order.locate(numbers)
                if self.weights is not None:
                    samples = self.weights.to_records(samples, epoch)
                last = shard.division.start(batch + 1) - 1
                samples, leaving = runs.read_lanes(skip_deleted(samples, dataset), shard.reads(numbers), last)
                slots, plan, weight = np.arange(len(numbers)), self.stage(epoch), shard.weight(batch)
                yield [SourceRequest(0, epoch, samples, slots, plan, leaving, weight)]
            if step:
                return
            epoch, first = epoch + 1, 0

    def windows_of(self, steps: I64) -> list[Windows]:
        (epochs, batches), division = np.divmod(steps, self.shard.batches), self.shard.division
        starts, stops = division.starts(batches), division.starts(batches + 1)
        firsts, before = np.where(stops - starts == self.shard.batch, 0, starts), epochs * self.shard.records
        return [Windows(before + starts, before + stops, firsts)]

    def steps_of(self, source: int, numbers: I64) -> I64:
        (epochs, samples), division = np.divmod(numbers, self.shard.records), self.shard.division
        last = division.batches - 1
        batches = np.where(samples >= division.start(last), last, samples // division.size)
        return np.where(samples < division.start(last + 1), epochs * division.batches + batches, -1)

    def lanes_of(self, source: int, numbers: I64) -> tuple[I64, I64 | int]:
        return numbers % self.shard.records % self.lanes, 0

    def slots_of(self, steps: I64, ranks: I64, sizes: I64) -> I64 | None:
        """Return None, which means slots 0, 1, …: a batch has its samples in the order of the epoch."""
        return None

    def batch_seed(self, epoch: int, batch: int) -> int:
        return rng.key(rng.AUGMENT, self.seed, epoch, batch, self.shard.rank)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        return {
            "version": VERSION,
            "dataset": self.uuid,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "lanes": self.shard.lanes,
            "world_size": self.shard.world_size,
            "epoch": epoch,
            "samples": self.shard.division.start(batch),
            # Loading a state does not compare the next two members; `picstore audit` rebuilds earlier steps from them.
            "global_batch": self.shard.batch,
            "drop_last": self.shard.drop_last,
            **({} if self.weights is None else {"weights": self.weights.digest}),
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and batch that follow a state; raise UsageError if no global batch begins there."""
        check_state(state, self.state(0, 0), _FIXED, of="loader")
        epoch, samples = position_in_epochs(state, "samples")
        division = self.shard.division
        batch = division.batch_of(samples)
        if division.start(batch) != samples or (batch > division.batches and "worker" not in state):
            raise UsageError(
                f"the state is after {counted(samples, 'sample')}; this loader goes on after whole global batches of "
                f"{division.size}, {division.batches} an epoch; give it the global batch size of the saved one"
            )
        return epoch, batch

    def _epoch_order(self, dataset: Dataset, epoch: int) -> EpochOrder:
        counts = dataset.live.counts if self.weights is None else self.weights.counts(epoch)
        return EpochOrder(counts, seed=self.seed, epoch=epoch, lanes=self.lanes, shuffle=self.shuffle)
