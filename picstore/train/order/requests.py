"""Requests for batches: the samples of each batch, the protocol of orders that yield them, and a Loader's order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from picstore import rng
from picstore.arrays import I64, Bools
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.order.apportionment import Apportionment
from picstore.train.order.epoch import EpochOrder, Samples
from picstore.train.order.position import check_position
from picstore.train.order.sharding import RankShard
from picstore.train.transforms.compose import TransformPlan
from picstore.train.transforms.progressive import EpochStages

_MIN_BUDGET = 64 << 20  # bytes
_FIXED = ("version", "dataset", "seed", "shuffle", "lanes", "weights")  # fields of a state that a loader must share


class PlanChoice(Protocol):
    """A rule by which batches take one of several plans."""

    def uses(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Mark the images, given width and height (n, 2), that a plan may be applied to in an epoch: bool (n,)."""


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """A data set that batches are made of."""

    dataset: Dataset
    seed: int  # of its order and of its random transforms
    base: int = 0  # added to labels other than −1
    plan: TransformPlan = field(default_factory=TransformPlan)  # of its images
    copies: int = 1  # times at most that a record comes in an epoch
    others: tuple[TransformPlan, ...] = ()  # of batches that need another plan; views, targets and columns are the same
    choice: PlanChoice | None = None  # tells which plans an image may need; None for all

    @property
    def plans(self) -> tuple[TransformPlan, ...]:
        """All plans, in the order of :attr:`SourceRequest.plan`."""
        return (self.plan, *self.others)

    def uses_plan(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Mark the images, given width and height (n, 2), that a plan may be applied to in an epoch: bool (n,)."""
        return np.ones(len(sizes), dtype=np.bool_) if self.choice is None else self.choice.uses(plan, epoch, sizes)


@dataclass(frozen=True, slots=True)
class LeavingRun:
    """A container that a lane is done with once a batch is made, but for ``records``, which later batches need."""

    container: int
    lane: int
    records: I64  # numbers in the container, ascending; one comes twice if two samples need it


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The samples of a batch that come from one epoch of one source, and their slots, int64 (n,).

    ``plan`` is the number of their transforms' plan; ``leaving`` are the containers that lanes are done with before
    all samples of these have come, see :class:`LeavingRun`.
    """

    source: int
    epoch: int
    samples: Samples
    slots: I64
    plan: int = 0
    leaving: tuple[LeavingRun, ...] = ()


BatchRequest: TypeAlias = Sequence[SourceRequest]


class Order(Protocol):
    """The order of all batches of a rank, as a pure function of its fields. It can be pickled."""

    def stage(self, epoch: int) -> int:
        """The number of the stage that an epoch is in; each may have callables of its own."""

    def length(self, epoch: int) -> int | None:
        """Batches in an epoch; None without end."""

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time, of all sources together."""

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield the requests for batch ``first`` of ``epoch`` and for those that follow, in later epochs too.

        A DataLoader's worker makes every ``step``-th batch of one epoch; elsewhere ``step`` is 0.
        """

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of torch's generators for the callables of a batch."""

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state of a loader whose next batch is this one: numbers, strings and lists of them."""

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and batch at which a state goes on; UsageError for one that does not fit this order."""


@dataclass(frozen=True, slots=True)
class DatasetOrder:
    """The order of a Loader: epoch after epoch of one data set, of which a rank has its shard."""

    shard: RankShard
    seed: int
    uuid: str = ""  # of the data set, with its selection
    weights: Apportionment | None = None  # None where each record comes once an epoch
    stages: EpochStages = field(default_factory=EpochStages)  # of which each has a plan

    @property
    def samples_of_rank(self) -> int:
        """Samples in an epoch of the rank that has most, those that fill no batch too."""
        return -(-self.shard.records // self.shard.world_size)

    def stage(self, epoch: int) -> int:
        """The number of an epoch's stage, and of its plan."""
        return self.stages.stage(epoch)

    def length(self, epoch: int) -> int:
        """Batches in an epoch."""
        return self.shard.batches

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time."""
        return self.shard.lanes // (self.shard.world_size if self.shard.shuffle else 1)

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield requests as :meth:`Order.requests` says; with a ``step``, of one epoch only."""
        dataset, shard = sources[0].dataset, self.shard
        while True:
            counts = dataset.live.counts if self.weights is None else self.weights.counts(epoch)
            order = EpochOrder(counts, seed=self.seed, epoch=epoch, lanes=shard.lanes, shuffle=shard.shuffle)
            for batch in range(first, shard.batches, max(1, step)):
                start, stop = shard.bounds(batch)
                samples = order.locate(shard.samples(start, stop))
                if self.weights is not None:
                    samples = self.weights.to_records(samples, epoch)
                slots, plan = np.arange(stop - start), self.stage(epoch)
                yield [SourceRequest(0, epoch, skip_deleted(samples, dataset), slots, plan)]
            if step:
                return
            epoch, first = epoch + 1, 0

    def find(self, dataset: Dataset, position: int, epoch: int) -> list[tuple[int, int, int]]:
        """Rank, batch and slot of each sample of an epoch that is ``dataset[position]``; none if it is left out."""
        ((container,), _), shard = dataset.live.find(np.array([position])), self.shard
        counts = dataset.live.counts
        record = position - int(counts[:container].sum())
        numbers = range(record, record + 1)
        if self.weights is not None:
            counts, numbers = self.weights.counts(epoch), self.weights.samples_of(int(container), record, epoch)
        order = EpochOrder(counts, seed=self.seed, epoch=epoch, lanes=shard.lanes, shuffle=shard.shuffle)
        found = (shard.find(order.find(int(container), number)) for number in numbers)
        return [place for place in found if place is not None]

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of a batch's callables."""
        return rng.key(rng.AUGMENT, self.seed, epoch, batch, self.shard.rank)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state before a batch."""
        return {
            "version": 1,
            "dataset": self.uuid,
            "seed": self.seed,
            "shuffle": self.shard.shuffle,
            "lanes": self.shard.lanes,
            "world_size": self.shard.world_size,
            "epoch": epoch,
            "samples": batch * self._global_batch,
            **({} if self.weights is None else {"weights": self.weights.digest}),
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and batch at which a state goes on; UsageError between global batches, or for another order's."""
        # The stored order is read in a contiguous range a rank, so only the same ranks can go on in the middle of it.
        fixed = () if self.shard.shuffle else ("world_size",)
        check_state(state, self.state(0, 0), (*_FIXED, *fixed), of="loader")
        epoch, samples = check_position(epoch=state.get("epoch"), samples=state.get("samples"))
        batch, rest = divmod(samples, self._global_batch)
        if rest or (batch > self.length(epoch) and "worker" not in state):
            raise UsageError(
                f"the state is after {samples} samples; this loader has {self.length(epoch)} global batches of "
                f"{self._global_batch} an epoch, and goes on after a whole number of them"
            )
        return epoch, batch

    @property
    def _global_batch(self) -> int:
        return self.shard.batch_size * self.shard.world_size


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], names: Sequence[str], *, of: str) -> None:
    """Raise UsageError if a state differs in one of its fields from the loader or mux that loads it."""
    for name in names:
        if state.get(name) != own.get(name):
            raise UsageError(f"the state has {name} {state.get(name)!r}, this {of} {own.get(name)!r}")


def skip_deleted(samples: Samples, dataset: Dataset) -> Samples:
    """Map samples of an order over live records to records of their containers."""
    return replace(samples, record=dataset.live.to_record_numbers(samples.container, samples.record))


def default_budget(datasets: Sequence[Dataset], lanes: int) -> int:
    """Bytes that ``lanes`` read at a time if each is in a container of the largest size, and a quarter more."""
    largest = max(int((ds.rows["size"] + ds.rows["referenced"]).max(initial=0)) for ds in datasets)
    return max(_MIN_BUDGET, 5 * lanes * largest // 4)


def count_classes(sources: Sequence[TrainingSource]) -> int:
    """Number of the labels that sources have names for; 0 if one has none."""
    counts = [len(source.dataset.classes) for source in sources]
    return max(source.base + count for source, count in zip(sources, counts, strict=True)) if all(counts) else 0
