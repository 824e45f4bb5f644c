"""Requests for batches: the samples of each batch, what lanes are done with, and the protocol of orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from picstore.arrays import I64, Bools
from picstore.storage.dataset import Dataset
from picstore.storage.record_shift import NO_SHIFT, RecordShift
from picstore.train.order.epoch import ALONE, IN_CONTAINER, Samples
from picstore.train.transforms.compose import TransformPlan

if TYPE_CHECKING:
    from typing_extensions import Self


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
    shift: RecordShift = NO_SHIFT  # of its labels, before the base is added

    @property
    def class_names(self) -> dict[int, str]:
        """Names of its labels in batches."""
        names = self.dataset.classes
        return dict(zip(self.batch_labels(np.arange(len(names))).tolist(), names, strict=True))

    def batch_labels(self, labels: I64) -> I64:
        """Labels in batches, given its own; −1, unknown, stays."""
        shifted = self.shift.map_labels(labels)
        return shifted + np.where(labels >= 0, self.base, 0)

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


class OpenRuns:
    """The runs of records that one rank's lanes are in the middle of, each in one container, in one epoch."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}  # by container and lane, the last sample that the lane takes

    def read(self, containers: I64, lanes: I64, ends: I64) -> None:
        """Note the runs of samples that a batch takes from containers: of each its ``Samples.end``."""
        self._ends.update(zip(zip(containers.tolist(), lanes.tolist(), strict=True), ends.tolist(), strict=True))

    def leave(self, last: int) -> list[tuple[int, int]]:
        """Forget the runs that end with a batch's last sample or before; return the container and the lane of each."""
        left = [run for run, end in self._ends.items() if end <= last]
        for run in left:
            del self._ends[run]
        return left

    def read_lanes(self, samples: Samples, inside: Bools, last: int) -> tuple[Samples, tuple[LeavingRun, ...]]:
        """Have a batch take the samples ``inside`` its rank's lanes from containers, and read the others alone.

        Returns:
            The samples, and the containers that lanes are done with after the ``last`` sample of the global batch.
        """
        self.read(samples.container[inside], samples.lane[inside], samples.end[inside])
        leaving = tuple(LeavingRun(*run, np.zeros(0, np.int64)) for run in self.leave(last))
        held = None if inside.all() else np.where(inside, IN_CONTAINER, ALONE).astype(np.uint8)
        return replace(samples, held=held), leaving


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """The samples of a batch that come from one epoch of one source.

    Attributes:
        slots: int64 (n,), of the samples in the batch.
        plan: number of their transforms' plan.
        leaving: the containers that lanes are done with after the batch.
        weight: of the rank's batch, see :attr:`picstore.train.batch.Batch.weight`; the same for all of its parts.
    """

    source: int
    epoch: int
    samples: Samples
    slots: I64
    plan: int = 0
    leaving: tuple[LeavingRun, ...] = ()
    weight: float = 1.0


BatchRequest: TypeAlias = Sequence[SourceRequest]


class Order(Protocol):
    """The order of all batches of a rank, as a pure function of its fields. It can be pickled."""

    def stage(self, epoch: int) -> int:
        """The number of the stage that an epoch is in; each may have callables of its own."""

    def length(self, epoch: int) -> int | None:
        """Batches in an epoch; None without end."""

    @property
    def lanes(self) -> int:
        """Lanes of each source."""

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time, of all sources together."""

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield the requests for batch ``first`` of ``epoch`` and for all later batches, in later epochs too.

        A DataLoader's worker makes every ``step``-th batch of one epoch; elsewhere ``step`` is 0.
        """

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of torch's generators for the callables of a batch."""

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state of a loader whose next batch is this one: numbers, strings and lists of them."""

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and batch at which a state of as many lanes goes on; UsageError if it does not fit this order."""

    def with_lanes(self, lanes: int) -> Self:
        """The same order but for its lanes."""


def skip_deleted(samples: Samples, dataset: Dataset) -> Samples:
    """Map samples of an order over live records to records of their containers."""
    return replace(samples, record=dataset.live.to_record_numbers(samples.container, samples.record))
