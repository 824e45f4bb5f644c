"""The order of a DataMux: which samples of which source each batch holds, as arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.position import check_position
from picstore.train.order.requests import BatchRequest, SourceRequest, TrainingSource, check_state, skip_deleted
from picstore.train.order.sharding import MIN_LANES
from picstore.train.transforms.arguments import checked_integer


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOrder:
    """The order of a mux, of which batch k of rank r is a pure function.

    Source i gives ``counts[i]`` records to each batch of each rank. Its samples are numbered through all its epochs,
    t = epoch * records + sample. Batch k takes those from k * W * counts[i] on, rank r every W-th from the r-th. So the
    W batches of the same number hold the same samples for every W with the same W * counts.
    """

    counts: tuple[int, ...]
    lanes: int  # of each source
    seed: int
    rank: int = 0
    world_size: int = 1
    epoch_batches: int | None = None  # in an iteration of the mux; None without end
    uuids: tuple[str, ...] = ()  # of the sources' data sets, with their selections

    def stage(self, epoch: int) -> int:
        """The number of an epoch's stage: there is one."""
        return 0

    def length(self, epoch: int) -> int | None:
        """Batches in an iteration; None without end."""
        return self.epoch_batches

    @property
    def batch_size(self) -> int:
        """Records in a batch of one rank."""
        return sum(self.counts)

    @property
    def lanes_read(self) -> int:
        """Lanes that this rank reads at a time, of all sources together."""
        return self.lanes * len(self.counts) // self.world_size

    def samples(self, source: int, batch: int) -> I64:
        """Numbers t of the samples of a source in a batch, int64 (counts[source],)."""
        per_batch = self.counts[source]
        own = np.arange(batch * per_batch, (batch + 1) * per_batch, dtype=np.int64)
        return own * self.world_size + self.rank

    def slots(self, batch: int) -> I64:
        """The slots of a batch's samples, those of the first source first."""
        number = batch * self.world_size + self.rank
        return rng.permutation(rng.key(rng.MUX, self.seed, len(self.counts), number), self.batch_size)

    def requests(
        self, sources: Sequence[TrainingSource], *, epoch: int, first: int = 0, step: int = 0
    ) -> Iterator[BatchRequest]:
        """Yield requests as :meth:`picstore.train.order.requests.Order.requests` says, without end."""
        repeating = [RepeatingSource(source, lanes=self.lanes) for source in sources]
        ends = np.cumsum(self.counts)
        for batch in count(self._number(epoch, first), max(1, step)):
            slots = np.split(self.slots(batch), ends[:-1])
            yield [
                request
                for number, source in enumerate(repeating)
                for request in source.requests(number, self.samples(number, batch), slots[number])
            ]

    def batch_seed(self, epoch: int, batch: int) -> int:
        """The seed of a batch's callables."""
        return rng.key(rng.MUX, self.seed, self._number(epoch, batch), self.rank)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state before a batch."""
        return {
            "version": 1,
            "datasets": list(self.uuids),
            "counts": list(self.counts),
            "seed": self.seed,
            "lanes": self.lanes,
            "world_size": self.world_size,
            "samples": self._number(epoch, batch) * self.batch_size,
        }

    def position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Epoch and batch at which a state goes on; UsageError for one of other data sets, seed or lanes."""
        check_state(state, self.state(0, 0), ("version", "datasets", "seed", "lanes"), of="mux")
        batches, _ = self.batches_and_rest(state)
        return divmod(batches, self.epoch_batches) if self.epoch_batches else (0, batches)

    def batches_and_rest(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Batches of this order that a state is after, and samples of the next one; UsageError between batches."""
        counts, world_size = state.get("counts"), state.get("world_size")
        (samples,) = check_position(samples=state.get("samples"))
        if counts == list(self.counts) and world_size == self.world_size:
            return divmod(samples, self.batch_size)
        if not isinstance(counts, list) or len(counts) != len(self.counts):
            raise UsageError(f"the state has counts {counts!r}, this mux {list(self.counts)}")
        world_size, *counts = (checked_integer(each, "world_size or a count", 1) for each in (world_size, *counts))
        before, rest = divmod(samples, sum(counts))
        positions = {
            divmod(before * world_size * old, self.world_size * new)
            for old, new in zip(counts, self.counts, strict=True)
        }
        batches, odd = min(positions)
        if rest or odd or len(positions) > 1:
            raise UsageError(
                f"the state is after {before} batches of counts {counts} on {world_size} ranks, which is no whole "
                f"number of batches of counts {list(self.counts)} on {self.world_size}"
            )
        return batches, 0

    def _number(self, epoch: int, batch: int) -> int:
        """The number of a batch, counted from the first of all."""
        return epoch * (self.epoch_batches or 0) + batch


class RepeatingSource:
    """The samples of one source, epoch after epoch."""

    def __init__(self, source: TrainingSource, *, lanes: int) -> None:
        self._source, self._lanes = source, lanes
        self._orders: dict[int, EpochOrder] = {}

    def requests(self, number: int, samples: I64, slots: I64) -> Iterator[SourceRequest]:
        """Split ascending samples of source ``number`` by the epochs that they lie in."""
        epochs, indices = np.divmod(samples, len(self._source.dataset))
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            located = skip_deleted(self._order(epoch).locate(indices[chosen]), self._source.dataset)
            yield SourceRequest(number, epoch, located, slots[chosen])

    def _order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            counts = self._source.dataset.live.counts
            self._orders = {epoch: EpochOrder(counts, seed=self._source.seed, epoch=epoch, lanes=self._lanes)}
        return self._orders[epoch]


def mux_lanes(lanes: int | None, *, sources: int, world_size: int) -> int:
    """Lanes of each source, by default so few that the containers held do not grow with the number of sources."""
    if lanes is None:
        return -(-max(1, MIN_LANES // sources) // world_size) * world_size
    if lanes < 1 or lanes % world_size:
        raise UsageError(f"{lanes} lanes cannot be shared by {world_size} ranks; use a multiple of {world_size}")
    return lanes
