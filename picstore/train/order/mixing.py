"""The plan of a mux: which samples of which source each batch holds, as arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.requests import Part, Request, Source, find
from picstore.train.order.sharding import MIN_LANES


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOrder:
    """The order of a mux, of which batch k of rank r is a pure function.

    Source i gives ``counts[i]`` records to each batch of each rank. Its samples are numbered through all its epochs,
    t = epoch * records + sample, and batch k takes those from k * W * counts[i] on, rank r every W-th from the r-th. So
    the W batches of the same number hold the same samples for every W with the same W * counts.
    """

    counts: tuple[int, ...]
    lanes: int
    seed: int
    rank: int = 0
    world_size: int = 1

    @property
    def batch_size(self) -> int:
        """Records in a batch of one rank."""
        return sum(self.counts)

    def samples(self, source: int, batch: int) -> I64:
        """Numbers t of the samples of a source in a batch, int64 (counts[source],)."""
        count = self.counts[source]
        own = np.arange(batch * count, (batch + 1) * count, dtype=np.int64)
        return own * self.world_size + self.rank

    def slots(self, batch: int) -> I64:
        """Where in the batch its samples go, those of the first source first."""
        number = batch * self.world_size + self.rank
        return rng.permutation(rng.key(rng.MUX, self.seed, len(self.counts), number), self.batch_size)


class RepeatingSource:
    """The samples of one source, epoch after epoch."""

    def __init__(self, source: Source, *, lanes: int) -> None:
        self._source = source
        self._lanes = lanes
        self._orders: dict[int, EpochOrder] = {}

    def parts(self, number: int, samples: I64, slots: I64) -> Iterator[Part]:
        """Some samples, ascending, by the epochs that they lie in."""
        epochs, places = np.divmod(samples, len(self._source.dataset))
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            found = find(self._order(epoch).locate(places[chosen]), self._source.dataset)
            yield Part(number, epoch, found, slots[chosen])

    def _order(self, epoch: int) -> EpochOrder:
        if epoch not in self._orders:
            counts = self._source.dataset.live.counts
            self._orders = {epoch: EpochOrder(counts, seed=self._source.seed, epoch=epoch, lanes=self._lanes)}
        return self._orders[epoch]


def make_requests(sources: Sequence[Source], *, mix: MixOrder, batches: range) -> Iterator[Request]:
    """The requests of some batches, counted from the first of all."""
    streams = [RepeatingSource(source, lanes=mix.lanes) for source in sources]
    ends = np.cumsum(mix.counts)
    for batch in batches:
        slots = np.split(mix.slots(batch), ends[:-1])
        yield [
            part
            for number, stream in enumerate(streams)
            for part in stream.parts(number, mix.samples(number, batch), slots[number])
        ]


def mux_lanes(lanes: int | None, *, sources: int, world_size: int) -> int:
    """Lanes of each source. The sources share them, so that the containers held do not grow with their number."""
    if lanes is None:
        return -(-max(1, MIN_LANES // sources) // world_size) * world_size
    if lanes < 1 or lanes % world_size:
        raise UsageError(f"{lanes} lanes cannot be shared by {world_size} ranks; use a multiple of {world_size}")
    return lanes


def locate(state: Mapping[str, Any], mix: MixOrder) -> tuple[int, int]:
    """Batches of this mux, and samples of the next, that a state is after.

    Raises:
        UsageError: the state is no place of this mux's.
    """
    counts, world_size, samples = state.get("counts"), state.get("world_size"), state.get("samples")
    if not isinstance(samples, int) or samples < 0:
        raise UsageError(f"the state is after {samples!r} samples; a number is needed")
    if counts == list(mix.counts) and world_size == mix.world_size:
        return divmod(samples, mix.batch_size)
    if not isinstance(world_size, int) or not isinstance(counts, list) or len(counts) != len(mix.counts):
        raise UsageError(f"the state has counts {counts!r} and world size {world_size!r}")
    before, rest = divmod(samples, sum(counts))
    places = {
        divmod(before * world_size * old, mix.world_size * new) for old, new in zip(counts, mix.counts, strict=True)
    }
    batches, odd = min(places)
    if rest or odd or len(places) > 1:
        raise UsageError(
            f"the state is after {before} batches of counts {counts} on {world_size} ranks, which is no whole number "
            f"of batches of counts {list(mix.counts)} on {mix.world_size}"
        )
    return batches, 0
