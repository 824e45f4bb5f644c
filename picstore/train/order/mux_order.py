"""Order of a DataMux: the samples of each source in each batch, as arithmetic on a schedule of counts."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, count
from typing import Any, NamedTuple

import numpy as np

from picstore import rng
from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import check_global_batch
from picstore.train.order.rank_shares import RankShares, check_rank, divide_samples
from picstore.train.order.requests import BatchRequest, OpenRuns, SourceRequest, TrainingSource, Windows, skip_deleted
from picstore.train.order.state_checks import MAX_POSITION, VERSION, check_position, check_state
from picstore.train.transforms.arguments import checked_integer


def source_seed(seed: int, number: int) -> int:
    """Return the seed of a mux's source, which depends on the source's number, because a dataset may be given twice."""
    return rng.key(rng.MUX, seed, number)


@dataclass(frozen=True)
class MuxSchedule:
    """Number of samples that each source (dataset) gives to a global batch; the numbers change at ``steps``.

    Attributes:
        steps: index of the first global batch with each of the ``counts``; ascending from 0.
        counts: for each step, each source's number of samples in a global batch.
    """

    steps: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if any(one >= other for one, other in zip(self.steps, self.steps[1:], strict=False)):
            raise UsageError(f"schedule has the steps {list(self.steps)}; each must come once, in ascending order")
        for step, counts in zip(self.steps, self.counts, strict=True):
            if min(counts) < 0 or not any(counts):
                raise UsageError(f"schedule has the counts {list(counts)} at step {step}; give at least 0, one above")

    @classmethod
    def constant(cls, counts: Sequence[int]) -> MuxSchedule:
        return cls((0,), (tuple(counts),))

    def times(self, factor: int) -> MuxSchedule:
        return MuxSchedule(self.steps, tuple(tuple(factor * each for each in counts) for counts in self.counts))

    def counts_at(self, batch: int) -> tuple[int, ...]:
        """Return the number of samples of each source in global batch ``batch``."""
        return self.counts[self._piece(batch)]

    def taken(self, batch: int) -> tuple[int, ...]:
        """Return the number of samples that each source has given before global batch ``batch``."""
        piece = self._piece(batch)
        pairs = zip(self._taken[piece], self.counts[piece], strict=True)
        return tuple(taken + (batch - self.steps[piece]) * count for taken, count in pairs)

    def batch_after(self, taken: Sequence[int]) -> int | None:
        """Return the global batch that follows ``taken`` samples of each source, or None if no batch begins there."""
        total = sum(taken)
        piece = bisect.bisect_right([sum(each) for each in self._taken], total) - 1
        batch = self.steps[piece] + (total - sum(self._taken[piece])) // sum(self.counts[piece])
        return batch if self.taken(batch) == tuple(taken) else None

    @cached_property
    def _taken(self) -> list[tuple[int, ...]]:
        """For each step of the schedule, the number of samples that each source has given before the step."""
        taken = [(0,) * len(self.counts[0])]
        for counts, step, following in zip(self.counts, self.steps, self.steps[1:], strict=False):
            taken.append(tuple(t + (following - step) * c for t, c in zip(taken[-1], counts, strict=True)))
        return taken

    def windows_of(self, batches: I64) -> list[Windows]:
        """Return, for each source, the range of samples that each of the global batches ``batches`` takes."""
        steps, counts, taken = (np.array(each) for each in (self.steps, self.counts, self._taken))
        piece = np.searchsorted(steps, batches, side="right") - 1
        sizes = counts[piece]
        starts = taken[piece] + (batches - steps[piece])[:, None] * sizes
        firsts = np.cumsum(sizes, axis=1) - sizes
        return [Windows(*each) for each in zip(starts.T, (starts + sizes).T, firsts.T, strict=True)]

    def batches_of(self, source: int, numbers: I64) -> I64:
        """Return the index of the global batch that takes each sample of a source; −1 if no batch takes the sample."""
        steps, counts, taken = (np.array(each) for each in (self.steps, self.counts, self._taken))
        piece = np.searchsorted(taken[:, source], numbers, side="right") - 1
        batches = steps[piece] + (numbers - taken[piece, source]) // np.maximum(counts[piece, source], 1)
        return np.where(counts[piece, source] > 0, batches, -1)

    def _piece(self, batch: int) -> int:
        return bisect.bisect_right(self.steps, batch) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MuxOrder:
    """Order of a mux: the fields alone determine each batch of each rank.

    The samples of a source (dataset) are numbered through all its epochs. A global batch takes as many samples of each
    source as the schedule says, after those of the previous batch. So global batches are the same for every world size.
    """

    schedule: MuxSchedule
    records: tuple[int, ...]  # number of records of each source
    lanes: int  # number of lanes (parts of an epoch that batches mix) of each source
    seed: int
    rank: int = 0
    world_size: int = 1
    epoch_batches: int | None = None  # number of batches of an iteration; None for no end
    uuids: tuple[str, ...] = ()  # identifiers of datasets and selections
    rank_shares: RankShares = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        for counts in self.schedule.counts:
            check_global_batch(sum(counts), self.world_size)
        object.__setattr__(self, "rank_shares", RankShares(self.lanes, self.world_size))

    def stage(self, epoch: int) -> int:
        return 0

    def length(self, epoch: int) -> int | None:
        return self.epoch_batches

    @property
    def lanes_read(self) -> int:
        return self.rank_shares.count_lanes(self.rank) * len(self.records)

    def with_lanes(self, lanes: int) -> MuxOrder:
        return replace(self, lanes=lanes)

    def shares(self, batch: int) -> I64:
        """Return the number of samples of each source in this rank's part of a global batch, int64 (sources,).

        A source's samples that cannot be divided evenly go to one rank each. The ranks take turns through all sources,
        so the batches of two ranks differ by at most one sample.
        """
        counts = np.array(self.schedule.counts_at(batch))
        return divide_samples(counts, self.rank, self.world_size, first=np.cumsum(counts) - counts)

    def windows(self, batch: int) -> list[_Window]:
        """Return, for each source, the window (range of consecutive samples) that a global batch takes."""
        counts = self.schedule.counts_at(batch)
        firsts, starts = accumulate(counts, initial=0), self.schedule.taken(batch)
        triples = zip(starts, counts, firsts, strict=False)
        return [_Window(start, start + count, first) for start, count, first in triples]

    def samples(self, source: int, window: _Window) -> I64:
        """Return this rank's samples in a source's window, numbered through all its epochs: int64 (share,)."""
        start, stop, first = window
        return self.rank_shares.find_samples(self.rank, start, stop, records=self.records[source], first=first)

    def slots(self, batch: int, size: int) -> I64:
        """Return random slots (places in the batch) of the ``size`` samples, sorted by source, of this rank's batch."""
        number = batch * self.world_size + self.rank
        return rng.permutation(rng.key(rng.MUX, self.seed, len(self.records), number), size)

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        repeating = [_RepeatingSource(source, number, self) for number, source in enumerate(sources)]
        for batch in count(self._number(epoch, first), max(1, step)):
            shares, windows = self.shares(batch), self.windows(batch)
            size = int(shares.sum())
            slots = np.split(self.slots(batch, size), np.cumsum(shares)[:-1])
            weight = self.world_size * size / sum(self.schedule.counts_at(batch))
            yield [
                request
                for source, window, mine in zip(repeating, windows, slots, strict=True)
                if len(mine)
                for request in source.requests(window, mine, weight)
            ]

    def windows_of(self, steps: I64) -> list[Windows]:
        return self.schedule.windows_of(steps)

    def steps_of(self, source: int, numbers: I64) -> I64:
        return self.schedule.batches_of(source, numbers)

    def lanes_of(self, source: int, numbers: I64) -> tuple[I64, I64 | int]:
        return self.rank_shares.lanes_of(numbers, self.records[source])

    def slots_of(self, steps: I64, ranks: I64, sizes: I64) -> I64 | None:
        numbers = (steps * self.world_size + ranks).astype(np.uint64)
        keys = rng.keys(rng.key(rng.MUX, self.seed, len(self.records)), numbers)
        return np.concatenate(rng.permutations(keys, sizes))

    def batch_seed(self, epoch: int, batch: int) -> int:
        return rng.key(rng.MUX, self.seed, self._number(epoch, batch), self.rank)

    def batch_size(self, epoch: int, batch: int) -> int:
        """Return the number of samples in this rank's batch."""
        return int(self.shares(self._number(epoch, batch)).sum())

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        number = self._number(epoch, batch)
        return {
            "version": VERSION,
            "datasets": list(self.uuids),
            "counts": list(self.schedule.counts_at(number)),
            "seed": self.seed,
            "lanes": self.lanes,
            "world_size": self.world_size,
            "taken": list(self.schedule.taken(number)),
            "read": 0,
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        check_state(state, self.state(0, 0), ("datasets", "seed", "lanes"), of="mux")
        batches, _ = self.batches_and_rest(state)
        return divmod(batches, self.epoch_batches) if self.epoch_batches else (0, batches)

    def batches_and_rest(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the number of batches before a state, and how many samples of its next batch a rank has read.

        Raise UsageError if no batch of this order begins at the state, or if it differs from the partly read batch.
        """
        taken, rest = _taken(state, len(self.records))
        batches = self.schedule.batch_after(taken)
        if batches is None or (rest and not self._shares_batch(state, batches, rest)):
            raise UsageError(
                f"the state is after {taken} samples of the datasets, and {rest} of a rank's next batch; give a mux "
                f"with its counts, as this one's global batches have {list(self.schedule.counts_at(batches or 0))}"
            )
        return batches, rest

    def _shares_batch(self, state: Mapping[str, Any], batch: int, rest: int) -> bool:
        """Return whether a state, after ``rest`` samples of a rank's batch, fits this rank's part of ``batch``."""
        counts, ranks = state["counts"], self.world_size if state["version"] == 1 else 1
        same = [ranks * each for each in counts] == list(self.schedule.counts_at(batch))
        return same and state.get("world_size") == self.world_size and rest < int(self.shares(batch).sum())

    def _number(self, epoch: int, batch: int) -> int:
        """Return a batch's index counted through all epochs, given its epoch and its index in the epoch."""
        return epoch * (self.epoch_batches or 0) + batch


class _Window(NamedTuple):
    """Samples ``start`` to ``stop`` - 1 of a source in a global batch, counted through all epochs.

    Ranks from ``first`` on get the leftover samples, see :func:`divide_samples`.
    """

    start: int
    stop: int
    first: int


class _RepeatingSource:
    """Maker of one rank's requests for samples of one source, which begins a new epoch when it is exhausted."""

    def __init__(self, source: TrainingSource, number: int, order: MuxOrder) -> None:
        self._source, self._number, self._order = source, number, order
        # By epoch, its order, and the containers that lanes are reading; only the latest requested epoch is kept.
        self._epochs: dict[int, tuple[EpochOrder, OpenRuns]] = {}

    def requests(self, window: _Window, slots: I64, weight: float) -> Iterator[SourceRequest]:
        """Yield a request for each epoch that has samples of the batch's ``window`` of the source."""
        order, records, dataset = self._order, self._order.records[self._number], self._source.dataset
        numbers = order.samples(self._number, window)
        inside = order.rank_shares.reads(order.rank, *order.rank_shares.lanes_of(numbers, records))
        epochs = numbers // records
        for epoch in dict.fromkeys(epochs.tolist()):
            chosen = epochs == epoch
            located, runs = self._epoch(epoch)
            samples = skip_deleted(located.locate(numbers[chosen] - epoch * records), dataset)
            last = min(window.stop - epoch * records, records) - 1
            samples, leaving = runs.read_lanes(samples, inside[chosen], last)
            yield SourceRequest(self._number, epoch, samples, slots[chosen], leaving=leaving, weight=weight)

    def _epoch(self, epoch: int) -> tuple[EpochOrder, OpenRuns]:
        if epoch not in self._epochs:
            counts, seed = self._source.dataset.live.counts, self._source.seed
            self._epochs = {epoch: (EpochOrder(counts, seed=seed, epoch=epoch, lanes=self._order.lanes), OpenRuns())}
        return self._epochs[epoch]


def _taken(state: Mapping[str, Any], sources: int) -> tuple[list[int], int]:
    """Return each source's number of samples before a state, and how many of its next batch a rank has read."""
    if state["version"] == 1:
        # In version 1, ``counts`` are the sources' counts in one rank's batch; ``samples`` is the rank's total.
        counts, (samples,) = _numbers(state, "counts", sources), check_position(samples=state.get("samples"))
        if not any(counts):
            raise UsageError(f"the state has counts {counts}; one above 0 is needed")
        batches, rest = divmod(samples, sum(counts))
        world_size = checked_integer(state.get("world_size"), "world_size of the state", 1)
        return [batches * each * world_size for each in counts], rest
    _numbers(state, "counts", sources)
    (rest,) = check_position(read=state.get("read"))
    return _numbers(state, "taken", sources), rest


def _numbers(state: Mapping[str, Any], name: str, count: int) -> list[int]:
    values = state.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise UsageError(f"the state has {name} {values!r}; a list of {count} integers is needed")
    return [checked_integer(value, f"{name} of the state", 0, MAX_POSITION) for value in values]
