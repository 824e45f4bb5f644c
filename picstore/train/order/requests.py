"""Requests for batches: the samples of a batch, the containers that lanes leave, and the protocol of orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from picstore.arrays import I64, Bools
from picstore.storage.dataset import Dataset
from picstore.storage.joined_manifest import NO_SHIFT, RecordShift
from picstore.train.order.epoch_order import ALONE, IN_CONTAINER, Samples
from picstore.train.transforms.transform_plan import TransformPlan

if TYPE_CHECKING:
    from typing_extensions import Self


class PlanChoice(Protocol):
    """Rule that chooses, for each batch, one of several plans (lists of transforms) of a source."""

    def uses(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Return whether any batch of the epoch could apply a plan (list of transforms) to each image: bool (n,).

        Args:
            plan: index in :attr:`TrainingSource.plans`.
            sizes: int64 (n, 2), width and height of each image.
        """


@dataclass(frozen=True, slots=True)
class TrainingSource:
    """Dataset that gives samples to batches, with the plans of its transforms."""

    dataset: Dataset
    seed: int  # seed of order and random transforms
    base: int = 0  # number added to labels other than −1
    plan: TransformPlan = field(default_factory=TransformPlan)
    copies: int = 1  # maximum number of samples of one record in an epoch
    # Plans of transforms besides ``plan``. Views, targets and columns are the same in all plans.
    others: tuple[TransformPlan, ...] = ()
    choice: PlanChoice | None = None  # rule that tells which plans an image may need; None for all plans
    shift: RecordShift = NO_SHIFT  # mapping of the dataset's labels, before ``base`` is added

    @property
    def class_names(self) -> dict[int, str]:
        """Names of the classes, by the labels in batches."""
        names = self.dataset.classes
        return dict(zip(self.batch_labels(np.arange(len(names))).tolist(), names, strict=True))

    def batch_labels(self, labels: I64) -> I64:
        """Map labels of the dataset to labels in batches; −1 (unknown) stays."""
        shifted = self.shift.map_labels(labels)
        return shifted + np.where(labels >= 0, self.base, 0)

    @property
    def plans(self) -> tuple[TransformPlan, ...]:
        """All plans (lists of transforms) of the source; :attr:`SourceRequest.plan` is an index in this tuple."""
        return (self.plan, *self.others)

    def uses_plan(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Return for each image whether any batch of the epoch can apply a plan to it; see :meth:`PlanChoice.uses`."""
        return np.ones(len(sizes), dtype=np.bool_) if self.choice is None else self.choice.uses(plan, epoch, sizes)


@dataclass(frozen=True, slots=True)
class LeavingRun:
    """Container that a lane (part of the epoch) leaves after a batch; its ``records`` are kept for later batches."""

    container: int
    lane: int
    records: I64  # indices in the container, ascending; the index of a record that two samples need comes twice


class OpenRuns:
    """Pairs of a container and a lane (part of an epoch) that has taken some, but not all, of its samples there."""

    def __init__(self) -> None:
        # Index of the last sample in the epoch that the lane takes from the container, by (container, lane).
        self._ends: dict[tuple[int, int], int] = {}

    def read(self, containers: I64, lanes: I64, ends: I64) -> None:
        """Note which lanes read which containers, given container, lane and ``Samples.end`` of a batch's samples."""
        self._ends.update(zip(zip(containers.tolist(), lanes.tolist(), strict=True), ends.tolist(), strict=True))

    def leave(self, last: int) -> list[tuple[int, int]]:
        """Forget and return the pairs (container, lane) whose last sample has the index ``last`` or less."""
        left = [run for run, end in self._ends.items() if end <= last]
        for run in left:
            del self._ends[run]
        return left

    def read_lanes(self, samples: Samples, inside: Bools, last: int) -> tuple[Samples, tuple[LeavingRun, ...]]:
        """Mark samples as IN_CONTAINER where ``inside`` is true, and as ALONE elsewhere.

        Args:
            inside: bool (n,), whether this rank reads the sample's lane.

        Returns:
            The marked samples; and the containers that lanes leave after sample ``last``, the last of the global batch.
        """
        self.read(samples.container[inside], samples.lane[inside], samples.end[inside])
        leaving = tuple(LeavingRun(*run, np.zeros(0, np.int64)) for run in self.leave(last))
        held = None if inside.all() else np.where(inside, IN_CONTAINER, ALONE).astype(np.uint8)
        return replace(samples, held=held), leaving


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """Samples of a batch that come from one epoch of one source (dataset).

    Attributes:
        source: index of the source.
        slots: int64 (n,), place of each sample in the batch.
        plan: index in :attr:`TrainingSource.plans` of the transforms of these samples.
        leaving: containers that lanes (parts of an epoch that batches mix) leave after the batch.
        weight: weight of the whole batch, see :attr:`picstore.train.batch.Batch.weight`.
    """

    source: int
    epoch: int
    samples: Samples
    slots: I64
    plan: int = 0
    leaving: tuple[LeavingRun, ...] = ()
    weight: float = 1.0


BatchRequest: TypeAlias = Sequence[SourceRequest]


class Windows(NamedTuple):
    """Samples that some global batches take of one source, numbered through all its epochs; int64 (batches,) each.

    Attributes:
        starts, stops: bounds of each batch's samples.
        firsts: first rank that gets a leftover sample of each batch, see ``rank_shares.divide_samples``.
    """

    starts: I64
    stops: I64
    firsts: I64


class Order(Protocol):
    """Order of all batches of a rank: a value that can be pickled, and that alone determines the batches."""

    def stage(self, epoch: int) -> int:
        """Return the index of the training stage of an epoch; each stage may have transforms of its own."""

    def length(self, epoch: int) -> int | None:
        """Return the number of batches in an epoch; None if the epoch has no end."""

    @property
    def lanes(self) -> int:
        """Number of lanes (parts of an epoch that batches mix) of each source."""

    @property
    def lanes_read(self) -> int:
        """Number of lanes (parts of an epoch) that this rank reads at a time, summed over all sources."""

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield the requests for batch ``first`` of ``epoch`` and for all later batches, through all later epochs.

        In a DataLoader's worker, yield every ``step``-th batch of ``epoch`` only; elsewhere ``step`` is 0.
        """

    def batch_seed(self, epoch: int, batch: int) -> int:
        """Return the seed of torch's generators for the user's functions that transform a batch."""

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return the state of a loader before a batch: numbers, strings, and lists of numbers and strings."""

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and batch that follow a state; raise UsageError if the state does not fit this order."""

    def with_lanes(self, lanes: int) -> Self:
        """Return a copy of the order with another number of lanes (parts of an epoch that batches mix)."""


def skip_deleted(samples: Samples, dataset: Dataset) -> Samples:
    """Convert each sample's record index among its container's live records to the index among all its records."""
    return replace(samples, record=dataset.live.to_record_numbers(samples.container, samples.record))
