"""Order of a Loader: epoch after epoch of one dataset; a rank makes its share of each global batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore import rng
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.requests import BatchRequest, OpenRuns, SourceRequest, TrainingSource, skip_deleted
from picstore.train.order.state_checks import VERSION, check_state, position_in_epochs
from picstore.train.order.weights import RecordShares
from picstore.train.transforms.progressive import EpochStages

# Fields that must be equal in a state and in the loader that loads the state.
_FIXED = ("dataset", "seed", "shuffle", "lanes", "weights")


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """Order of a Loader: epoch after epoch of one dataset, shared by ranks; see :class:`Order`."""

    shard: RankShard
    seed: int
    uuid: str = ""  # identifier of the dataset and its selection
    weights: RecordShares | None = None  # shares of the records; None if each record comes once an epoch
    stages: EpochStages = field(default_factory=EpochStages)  # stages of training; each has its own plan
    shuffle: bool = True  # False keeps the stored order in each lane

    @property
    def samples_of_rank(self) -> int:
        """Number of samples of a rank in an epoch, those of an incomplete batch included, rounded up."""
        return self.shard.samples_of_rank

    def stage(self, epoch: int) -> int:
        return self.stages.stage(epoch)

    def length(self, epoch: int) -> int:
        return self.shard.batches

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
        """Yield the requests for batches, as :meth:`Order.requests` describes."""
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
        """List (rank, batch, slot) of each sample of the record ``dataset[position]`` in an epoch.

        With weights, a record may have several samples in an epoch, or none. Samples in no batch are not listed.
        """
        ((container,), _) = dataset.live.find(np.array([position]))
        record = position - int(dataset.live.counts[:container].sum())
        numbers = range(record, record + 1)
        if self.weights is not None:
            numbers = self.weights.samples_of(int(container), record, epoch)
        order = self._epoch_order(dataset, epoch)
        found = (self.shard.find(order.find(int(container), number)) for number in numbers)
        return [place for place in found if place is not None]

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
            **({} if self.weights is None else {"weights": self.weights.digest}),
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and batch at which a state goes on; raise UsageError if no global batch begins there."""
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
