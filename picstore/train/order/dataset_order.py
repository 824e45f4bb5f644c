"""The order of a Loader: epoch after epoch of one data set, of which a rank makes its shares of global batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore import rng
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.order.apportionment import Apportionment
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.requests import BatchRequest, OpenRuns, SourceRequest, TrainingSource, skip_deleted
from picstore.train.order.sharding import RankShard
from picstore.train.order.states import VERSION, check_state, position_in_epochs
from picstore.train.transforms.progressive import EpochStages

_FIXED = ("dataset", "seed", "shuffle", "lanes", "weights")  # fields of a state that a loader must share


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """The order of a Loader: epoch after epoch of one data set, of which a rank has its shard."""

    shard: RankShard
    seed: int
    uuid: str = ""  # of the data set, with its selection
    weights: Apportionment | None = None  # None where each record comes once an epoch
    stages: EpochStages = field(default_factory=EpochStages)  # of which each has a plan
    shuffle: bool = True  # False for the stored order in each lane

    @property
    def samples_of_rank(self) -> int:
        """A rank's part of an epoch's samples, incomplete batch included, rounded up."""
        return self.shard.samples_of_rank

    def stage(self, epoch: int) -> int:
        """The number of an epoch's stage, and of its plan."""
        return self.stages.stage(epoch)

    def length(self, epoch: int) -> int:
        """Batches in an epoch."""
        return self.shard.batches

    @property
    def lanes(self) -> int:
        """Lanes of an epoch."""
        return self.shard.lanes

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time."""
        return self.shard.dealing.count_lanes(self.shard.rank)

    def with_lanes(self, lanes: int) -> DatasetOrder:
        """The same order but for its lanes."""
        return replace(self, shard=replace(self.shard, lanes=lanes))

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield requests as :meth:`Order.requests` says; with a ``step``, of one epoch only."""
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

    def find(self, dataset: Dataset, position: int, epoch: int) -> list[tuple[int, int, int]]:
        """Rank, batch and slot of each sample of an epoch that is ``dataset[position]``; none if it is left out."""
        ((container,), _) = dataset.live.find(np.array([position]))
        record = position - int(dataset.live.counts[:container].sum())
        numbers = range(record, record + 1)
        if self.weights is not None:
            numbers = self.weights.samples_of(int(container), record, epoch)
        order = self._epoch_order(dataset, epoch)
        found = (self.shard.find(order.find(int(container), number)) for number in numbers)
        return [place for place in found if place is not None]

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of a batch's callables."""
        return rng.key(rng.AUGMENT, self.seed, epoch, batch, self.shard.rank)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state before a batch."""
        return {
            "version": VERSION,
            "dataset": self.uuid,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "lanes": self.shard.lanes,
            "world_size": self.shard.world_size,
            "epoch": epoch,
            "samples": self.shard.division.start(batch),
            **({} if self.weights is None else {"weights": self.weights.digest}),
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and batch at which a state goes on; UsageError between global batches, or for another order's."""
        check_state(state, self.state(0, 0), _FIXED, of="loader")
        epoch, samples = position_in_epochs(state, "samples")
        division = self.shard.division
        batch = division.batch_of(samples)
        if division.start(batch) != samples or (batch > division.batches and "worker" not in state):
            raise UsageError(
                f"the state is after {samples} samples; this loader goes on after whole global batches of "
                f"{division.size}, {division.batches} an epoch; give it the global batch size of the saved one"
            )
        return epoch, batch

    def _epoch_order(self, dataset: Dataset, epoch: int) -> EpochOrder:
        counts = dataset.live.counts if self.weights is None else self.weights.counts(epoch)
        return EpochOrder(counts, seed=self.seed, epoch=epoch, lanes=self.lanes, shuffle=self.shuffle)
