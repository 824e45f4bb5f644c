"""The order of a DataMux: which samples of which source each batch holds, as arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any, NamedTuple

import numpy as np

from picstore import rng
from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.order.dealing import Dealing, divide_samples
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.position import MAX_POSITION, check_position
from picstore.train.order.requests import BatchRequest, OpenRuns, SourceRequest, TrainingSource, skip_deleted
from picstore.train.order.schedule import MixSchedule
from picstore.train.order.sharding import MIN_LANES, check_global_batch, check_rank
from picstore.train.order.states import VERSION, check_state
from picstore.train.transforms.arguments import checked_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOrder:
    """The order of a mux, of which batch k of rank r is a pure function.

    The samples of a source are numbered through all its epochs, t = epoch * records + sample. Global batch k takes from
    each source as many as the schedule says, from where batch k - 1 ended. So global batches are the same for every
    world size.
    """

    schedule: MixSchedule  # of global batches
    records: tuple[int, ...]  # of each source
    lanes: int  # of each source
    seed: int
    rank: int = 0
    world_size: int = 1
    epoch_batches: int | None = None  # in an iteration of the mux; None without end
    uuids: tuple[str, ...] = ()  # of the sources' data sets, with their selections
    dealing: Dealing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size)
        for counts in self.schedule.counts:
            check_global_batch(sum(counts), self.world_size)
        object.__setattr__(self, "dealing", Dealing(self.lanes, self.world_size))

    def stage(self, epoch: int) -> int:
        """The number of an epoch's stage: there is one."""
        return 0

    def length(self, epoch: int) -> int | None:
        """Batches in an iteration; None without end."""
        return self.epoch_batches

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time, of all sources together."""
        return self.dealing.count_lanes(self.rank) * len(self.records)

    def with_lanes(self, lanes: int) -> MixOrder:
        """The same order but for its lanes."""
        return replace(self, lanes=lanes)

    def shares(self, batch: int) -> I64:
        """Samples of each source in a batch of this rank, int64 (sources,).

        Where a count does not divide by the ranks, some ranks have one sample more: the next ranks in turn, source
        after source. So the ranks' batches differ by one sample at most.
        """
        counts = np.array(self.schedule.counts_at(batch))
        return divide_samples(counts, self.rank, self.world_size, first=np.cumsum(counts) - counts)

    def windows(self, batch: int) -> list[_Window]:
        """The samples of each source that a global batch takes."""
        counts = self.schedule.counts_at(batch)
        firsts, starts = accumulate(counts, initial=0), self.schedule.taken(batch)
        triples = zip(starts, counts, firsts, strict=False)
        return [_Window(start, start + count, first) for start, count, first in triples]

    def samples(self, source: int, window: _Window) -> I64:
        """Numbers t of this rank's samples of a source in a window, int64 (share,)."""
        start, stop, first = window
        return self.dealing.find_samples(self.rank, start, stop, records=self.records[source], first=first)

    def slots(self, batch: int, size: int) -> I64:
        """The slots of the ``size`` samples of this rank's batch, source after source."""
        number = batch * self.world_size + self.rank
        return rng.permutation(rng.key(rng.MUX, self.seed, len(self.records), number), size)

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield requests as :meth:`picstore.train.order.requests.Order.requests` says, without end."""
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

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of a batch's callables."""
        return rng.key(rng.MUX, self.seed, self._number(epoch, batch), self.rank)

    def batch_size(self, epoch: int, batch: int) -> int:
        """Samples in a batch of this rank."""
        return int(self.shares(self._number(epoch, batch)).sum())

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state before a batch: of each source, the samples that it has given."""
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
        """Epoch and batch at which a state goes on; UsageError for one of other data sets, seed or lanes."""
        check_state(state, self.state(0, 0), ("datasets", "seed", "lanes"), of="mux")
        batches, _ = self.batches_and_rest(state)
        return divmod(batches, self.epoch_batches) if self.epoch_batches else (0, batches)

    def batches_and_rest(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Batches of this order that a state is after, and samples of the next one; UsageError between batches."""
        taken, rest = _taken(state, len(self.records))
        batches = self.schedule.batch_after(taken)
        if batches is None or (rest and not self._shares_batch(state, batches, rest)):
            raise UsageError(
                f"the state is after {taken} samples of the data sets, and {rest} of a rank's next batch; give a mux "
                f"with its counts, as this one's global batches have {list(self.schedule.counts_at(batches or 0))}"
            )
        return batches, rest

    def _shares_batch(self, state: Mapping[str, Any], batch: int, rest: int) -> bool:
        """Whether a rank's batch of which a state has read ``rest`` samples is a batch of this order too."""
        counts, ranks = state["counts"], self.world_size if state["version"] == 1 else 1
        same = [ranks * each for each in counts] == list(self.schedule.counts_at(batch))
        return same and state.get("world_size") == self.world_size and rest < int(self.shares(batch).sum())

    def _number(self, epoch: int, batch: int) -> int:
        """The number of a batch, counted from the first of all."""
        return epoch * (self.epoch_batches or 0) + batch


class _Window(NamedTuple):
    """The samples of a source that a global batch takes, through all epochs, and the rank with the first extra one."""

    start: int
    stop: int
    first: int


class _RepeatingSource:
    """A rank's samples of one source, epoch after epoch."""

    def __init__(self, source: TrainingSource, number: int, order: MixOrder) -> None:
        self._source, self._number, self._order = source, number, order
        self._epochs: dict[int, tuple[EpochOrder, OpenRuns]] = {}  # the last one

    def requests(self, window: _Window, slots: I64, weight: float) -> Iterator[SourceRequest]:
        """Yield a request for each epoch in which the source's samples of a batch lie."""
        order, records, dataset = self._order, self._order.records[self._number], self._source.dataset
        numbers = order.samples(self._number, window)
        inside = order.dealing.reads(order.rank, *order.dealing.lanes_of(numbers, records))
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


def mux_lanes(lanes: int | None, *, sources: int, world_size: int) -> int:
    """Lanes of each source, by default so few that the containers held do not grow with the number of sources."""
    if lanes is None:
        return -(-max(1, MIN_LANES // sources) // world_size) * world_size
    return lanes


def _taken(state: Mapping[str, Any], sources: int) -> tuple[list[int], int]:
    """Read how many samples each source has given before a state, and how many of a rank's next batch were read."""
    if state["version"] == 1:  # counts are of a rank's batch, and its samples of all sources together
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
