"""Samples that an order drew in some steps, on all ranks: lists of them, counts by record, and steps of some records.

A step is a global batch, numbered through all epochs. The samples are computed from the order alone, about 65,536 at a
time; no image is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from picstore.arrays import I64, Table
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.bucket_order import BucketOrder
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.epoch_order import EpochOrder, groups_of
from picstore.train.order.mux_order import MuxOrder, source_seed
from picstore.train.order.rank_shares import RankShares
from picstore.train.order.requests import Windows
from picstore.train.order.weights import RecordShares

# Fields of a sample: step; rank; slot in the rank's batch; index of the source; epoch of the source; and position of
# the record among the source's live records.
DRAWN = np.dtype([(name, "<i8") for name in ("step", "rank", "slot", "source", "epoch", "position")])
_CHUNK = 1 << 16  # number of samples to compute at a time
# Maximum number of records that a search with buckets looks up one by one; for more, it computes all batches.
_FEW = 8


class SteppedOrder(Protocol):
    """Order whose global batch takes consecutive samples of each source; samples are numbered through all epochs."""

    @property
    def rank_shares(self) -> RankShares:
        """Rule by which ranks share the lanes (parts of an epoch that batches mix) and the samples."""

    def windows_of(self, steps: I64) -> list[Windows]:
        """Return, for each source, the range of samples that each of the global batches ``steps`` takes."""

    def steps_of(self, source: int, numbers: I64) -> I64:
        """Return the index of the global batch that takes each sample of a source; −1 if no batch takes the sample."""

    def lanes_of(self, source: int, numbers: I64) -> tuple[I64, I64 | int]:
        """Return the lane of each sample of a source, and its epoch's turn, see ``RankShares.find_readers``."""

    def slots_of(self, steps: I64, ranks: I64, sizes: I64) -> I64 | None:
        """Return the place in its batch of each sample of several batches, one batch after the other, int64 (n,).

        Batch i is rank ``ranks[i]``'s part of global batch ``steps[i]`` and has ``sizes[i]`` samples. Return None if
        the samples of each batch have the places 0, 1, … in order.
        """


class Drawn(Protocol):
    """Samples that an order draws in a range of steps, on all ranks together."""

    def samples(self, first: int, stop: int) -> Iterator[Table]:
        """Yield the samples of steps ``first`` to ``stop`` - 1 as arrays of DRAWN, sorted by step, rank and slot."""

    def counts(self, first: int, stop: int) -> list[I64]:
        """Return, for each source, how often steps ``first`` to ``stop`` - 1 draw each record: int64 (records,)."""

    def find(self, source: int, positions: I64, first: int, stop: int) -> Table:
        """Return the samples of a source's live records ``positions`` in the steps ``first`` to ``stop`` - 1."""


def drawn_samples(order: DatasetOrder | BucketOrder | MuxOrder, sources: Sequence[LiveRecords]) -> Drawn:
    """Return the samples that an order draws, given the live records of its datasets."""
    if isinstance(order, BucketOrder):
        return _BucketSamples(order, sources[0])
    if isinstance(order, DatasetOrder):
        shard = order.shard
        taken = shard.division.start(shard.batches)
        (live,) = sources
        only = _Source(live, shard.records, taken, order.seed, order.lanes, order.shuffle, order.weights)
        return _SteppedSamples(order, [only])
    counts = zip(sources, order.records, strict=True)
    several = [
        _Source(live, records, records, source_seed(order.seed, number), order.lanes)
        for number, (live, records) in enumerate(counts)
    ]
    return _SteppedSamples(order, several)


@dataclass(frozen=True, eq=False)
class _Source:
    """Samples of one dataset, epoch after epoch.

    Attributes:
        records: number of samples in an epoch.
        taken: number of samples of an epoch that batches take; the last samples may be left out.
    """

    live: LiveRecords
    records: int
    taken: int
    seed: int
    lanes: int
    shuffle: bool = True
    weights: RecordShares | None = None
    starts: I64 = field(init=False, repr=False)
    _latest: dict[int, EpochOrder] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.concatenate(([0], np.cumsum(self.live.counts))))

    def order(self, epoch: int) -> EpochOrder:
        if epoch not in self._latest:
            counts = np.diff(self.starts) if self.weights is None else self.weights.counts(epoch)
            self._latest.clear()
            self._latest[epoch] = EpochOrder(
                counts, seed=self.seed, epoch=epoch, lanes=self.lanes, shuffle=self.shuffle
            )
        return self._latest[epoch]

    def locate(self, epoch: int, samples: I64) -> I64:
        """Return, for samples of an epoch, the positions of their records among the live records."""
        found = self.order(epoch).locate(samples)
        if self.weights is not None:
            found = self.weights.to_records(found, epoch)
        return self.starts[found.container] + found.record

    def find(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        """Return an epoch's samples of records ``positions``, and the samples' records as indices in ``positions``."""
        containers = np.searchsorted(self.starts, positions, side="right") - 1
        records, which = positions - self.starts[containers], np.arange(len(positions))
        if self.weights is not None:
            begins, times = self.weights.samples_of(containers, records, epoch)
            which = np.repeat(which, times)
            records = np.arange(len(which)) + np.repeat(begins - np.cumsum(times) + times, times)
        return self.order(epoch).find(containers[which], records), which

    def add_counts(self, total: I64, epoch: int, begin: int, end: int) -> None:
        """Add to ``total`` how often the samples ``begin`` to ``end`` - 1 of an epoch draw each live record."""
        runs, sign = [(begin, end)], 1
        if end - begin > self.records // 2:
            # Count all samples and subtract those outside the range, which are fewer than those in it.
            runs, sign = [(0, begin), (end, self.records)], -1
            total += 1 if self.weights is None else self.weights.times(epoch)
        for start, stop in runs:
            for low in range(start, stop, _CHUNK):
                positions = self.locate(epoch, np.arange(low, min(low + _CHUNK, stop)))
                np.add.at(total, positions, sign)


class _SteppedSamples:
    """Samples that a :class:`SteppedOrder` draws; see :class:`Drawn`."""

    def __init__(self, order: SteppedOrder, sources: Sequence[_Source]) -> None:
        self._order, self._sources = order, sources

    def samples(self, first: int, stop: int) -> Iterator[Table]:
        for steps in self._parts(np.arange(first, stop)):
            table, numbers = self._deal(steps)
            for number, source in enumerate(self._sources):
                mine = np.flatnonzero(table["source"] == number)
                for same in groups_of(table["epoch"][mine]):
                    where = mine[same]
                    epoch = int(table["epoch"][where[0]])
                    table["position"][where] = source.locate(epoch, numbers[where] - epoch * source.records)
            yield table

    def counts(self, first: int, stop: int) -> list[I64]:
        found = []
        for source, windows in zip(self._sources, self._order.windows_of(np.array([first, stop])), strict=True):
            low, high = windows.starts.tolist()
            total = np.zeros(len(source.live), dtype=np.int64)
            begin, end = low // source.records, -(-high // source.records)
            epochs: Sequence[int] = range(begin, end)
            if source.weights is None and source.taken == source.records and len(epochs) > 2:
                # Whole epochs draw each record once, so only the first and last, which may be partial, are computed.
                total += len(epochs) - 2
                epochs = [begin, end - 1]
            for epoch in epochs:
                before = epoch * source.records
                source.add_counts(total, epoch, max(low - before, 0), min(high - before, source.taken))
            found.append(total)
        return found

    def find(self, source: int, positions: I64, first: int, stop: int) -> Table:
        low, high = self._order.windows_of(np.array([first, stop]))[source].starts.tolist()
        records = self._sources[source].records
        found = [np.zeros((3, 0), dtype=np.int64)]
        for epoch in range(low // records, -(-high // records)):
            samples, which = self._sources[source].find(epoch, positions)
            numbers = samples + epoch * records
            found.append(np.stack([numbers, self._order.steps_of(source, numbers), positions[which]]))
        numbers, steps, places = np.concatenate(found, axis=1)
        inside = (steps >= first) & (steps < stop)
        sorted_ = np.flatnonzero(inside)[np.argsort(numbers[inside])]
        numbers, places, tables = numbers[sorted_], places[sorted_], [np.zeros(0, DRAWN)]
        for some in self._parts(np.unique(steps[sorted_])):
            table, drawn = self._deal(some)
            mine = np.flatnonzero((table["source"] == source) & np.isin(drawn, numbers))
            table["position"][mine] = places[np.searchsorted(numbers, drawn[mine])]
            tables.append(table[mine])
        return np.concatenate(tables)

    def _parts(self, steps: I64) -> Iterator[I64]:
        """Cut ascending steps (indices of global batches) into parts that draw about 65,536 samples each."""
        begin = 0
        while begin < len(steps):
            size = sum(int(each.stops[0] - each.starts[0]) for each in self._order.windows_of(steps[begin : begin + 1]))
            end = begin + max(1, _CHUNK // size)
            yield steps[begin:end]
            begin = end

    def _deal(self, steps: I64) -> tuple[Table, I64]:
        """Return samples of ``steps`` as rows of DRAWN, ``position`` still 0, and their numbers through all epochs."""
        windows = self._order.windows_of(steps)
        parts, numbered = [], []
        for source, (starts, stops, firsts) in enumerate(windows):
            lengths = stops - starts
            group = np.repeat(np.arange(len(steps)), lengths)
            numbers = np.arange(len(group)) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
            shares, part = self._order.rank_shares, np.zeros(len(group), DRAWN)
            readers = shares.find_readers(*self._order.lanes_of(source, numbers))
            part["rank"] = shares.deal_batches(readers, group, lengths[group], firsts=firsts[group])
            part["step"], part["source"] = steps[group], source
            part["epoch"] = numbers // self._sources[source].records
            parts.append(part)
            numbered.append(numbers)
        table, numbers = np.concatenate(parts), np.concatenate(numbered)
        sorted_ = np.lexsort((table["rank"], table["step"]))
        slots = _runs_of(table["step"][sorted_], table["rank"][sorted_])
        begins = np.flatnonzero(slots == 0)
        sizes = np.diff(begins, append=len(slots))
        first = table[sorted_[begins]]
        dealt = self._order.slots_of(first["step"], first["rank"], sizes)
        table["slot"][sorted_] = slots if dealt is None else dealt
        sorted_ = np.lexsort((table["slot"], table["rank"], table["step"]))
        return table[sorted_], numbers[sorted_]


class _BucketSamples:
    """Samples that a :class:`BucketOrder` draws; see :class:`Drawn`."""

    def __init__(self, order: BucketOrder, live: LiveRecords) -> None:
        self._order, self._live = order, live

    def samples(self, first: int, stop: int) -> Iterator[Table]:
        length, done = self._order.batches, first
        while done < stop:
            epoch, batch = divmod(done, length)
            last = min(length, stop - epoch * length)
            for batches, ranks, positions in self._order.drawn(self._live, epoch, batch, last):
                part = np.zeros(len(batches), DRAWN)
                part["step"], part["rank"], part["position"] = batches + epoch * length, ranks, positions
                part["epoch"], part["slot"] = epoch, _runs_of(batches, ranks)
                yield part
            done = (epoch + 1) * length

    def counts(self, first: int, stop: int) -> list[I64]:
        total = np.zeros(len(self._live), dtype=np.int64)
        for table in self.samples(first, stop):
            np.add.at(total, table["position"], 1)
        return [total]

    def find(self, source: int, positions: I64, first: int, stop: int) -> Table:
        if len(positions) > _FEW:
            tables = [table[np.isin(table["position"], positions)] for table in self.samples(first, stop)]
            return np.concatenate([np.zeros(0, DRAWN), *tables])
        length = self._order.batches
        rows = [
            (epoch * length + step, rank, slot, 0, epoch, position)
            for epoch in range(first // length, -(-stop // length))
            for position in positions.tolist()
            for rank, step, slot in self._order.find(self._live, position, epoch)
            if first <= epoch * length + step < stop
        ]
        return np.sort(np.array(rows, DRAWN))


def _runs_of(*sorted_: I64) -> I64:
    """Return, for each row of a sorted table given by its columns, the number of equal rows before it."""
    changes = np.any([np.diff(each, prepend=-1) != 0 for each in sorted_], axis=0)
    begins = np.flatnonzero(changes)
    return np.arange(len(changes)) - np.repeat(begins, np.diff(begins, append=len(changes)))
