"""DataMux: batches mixed from several data sets at exact counts, endlessly, as PicPoc's class of that name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from picstore import draw
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, Part, Source
from picstore.train.damage import Losses
from picstore.train.geometry import Transform
from picstore.train.loader import default_budget, default_threads, finish
from picstore.train.pipeline import Limits, Pipeline, Request
from picstore.train.plan import MIN_LANES, Epoch, Samples


@dataclass(frozen=True, slots=True)
class MuxEntry:
    """One line of a mux configuration: ``count`` records of ``path`` in each batch, ``base`` added to their labels."""

    path: Path
    base: int
    count: int


@dataclass(frozen=True, eq=False)
class Sample:
    """One image of a mux: uint8 (3, H, W), its label and its id in its own data set."""

    image: torch.Tensor
    label: int
    id: int


def read_config(path: str | os.PathLike[str]) -> list[MuxEntry]:
    """Read PicPoc's configuration: ``path base_label count`` again and again, white space between.

    A relative path is looked for beside the configuration file, then in the working directory.

    Raises:
        UsageError: the file cannot be read, or does not hold such triples.
    """
    config = Path(path)
    try:
        words = config.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{config} cannot be read: {error}") from error
    if not words or len(words) % 3:
        raise UsageError(f"{config} holds {len(words)} words; `path base_label count` for each data set are needed")
    entries = []
    for name, base, count in zip(words[::3], words[1::3], words[2::3], strict=True):
        beside = config.parent / name
        try:
            entry = MuxEntry(beside if beside.exists() else Path(name), int(base), int(count))
        except ValueError as error:
            raise UsageError(f"{config}: {name} {base} {count}: base label and count must be integers") from error
        if entry.base < 0 or entry.count < 1:
            raise UsageError(f"{config}: {name} has base label {base} and count {count}; at least 0 and 1 are needed")
        entries.append(entry)
    return entries


class _Endless:
    """The samples of one source, epoch after epoch."""

    def __init__(self, source: Source, *, lanes: int, start: int) -> None:
        self._source = source
        self._lanes = lanes
        self._epoch, self._at = divmod(start, len(source.dataset))
        self._order = self._new_order()

    def _new_order(self) -> Epoch:
        counts = self._source.dataset.rows["records"]
        return Epoch(counts, seed=self._source.seed, epoch=self._epoch, lanes=self._lanes)

    def take(self, count: int) -> tuple[int, Samples]:
        """The next samples, ``count`` or as many as are left in the epoch, and the epoch."""
        if self._at == self._order.records:
            self._epoch, self._at = self._epoch + 1, 0
            self._order = self._new_order()
        stop = min(self._at + count, self._order.records)
        samples = self._order.locate(np.arange(self._at, stop))
        self._at = stop
        return self._epoch, samples


class DataMux:
    """Mixes data sets: each batch holds exactly the configured count of each, in a shuffled order, without end.

    Each data set begins a new epoch of its own when it is exhausted. Use it either by batches (iterate; after a
    ``break``, iterating again goes on with the batch that follows) or by samples (``peek`` and ``read``).

    Args:
        config: a file in PicPoc's format, see :func:`read_config`.
        transform, seed, device, threads, budget: as of :class:`picstore.Loader`.
        on_damage: as of :class:`picstore.Loader`; a lost record is replaced by one of its own data set.

    Raises:
        UsageError: the configuration or the arguments cannot be right.
        NotADataset, Damage: a data set cannot be opened.
    """

    def __init__(
        self,
        config: str | os.PathLike[str],
        *,
        transform: Sequence[Transform] = (),
        seed: int = 0,
        device: str | torch.device = "cpu",
        threads: int | None = None,
        on_damage: str = "skip",
        budget: int | None = None,
    ) -> None:
        self._entries = read_config(config)
        # A seed of its own for each source: one data set may be listed twice.
        self._sources = [
            Source(Dataset(entry.path), draw.key(draw.MUX, seed, number), entry.base)
            for number, entry in enumerate(self._entries)
        ]
        for entry, source in zip(self._entries, self._sources, strict=True):
            if len(source.dataset) == 0:
                raise UsageError(f"{entry.path} has no records")
        self._transforms = tuple(transform)
        self._seed = seed
        self._device = torch.device(device)
        # The sources share the lanes, so that the containers held do not grow with the number of sources.
        self._lanes = max(1, MIN_LANES // len(self._sources))
        if budget is None:
            budget = default_budget([source.dataset for source in self._sources], self._lanes * len(self._sources))
        self._limits = Limits(default_threads() if threads is None else threads, budget)
        self._losses = Losses(on_damage)
        self._taken = 0  # samples, by batches or one by one
        self._samples: Iterator[Sample] | None = None
        self._next: Sample | None = None

    @property
    def batch_size(self) -> int:
        """Records in each batch."""
        return sum(entry.count for entry in self._entries)

    @property
    def damaged(self) -> int:
        """Samples replaced because their record was damaged."""
        return self._losses.count

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        first = -(-self._taken // self.batch_size)  # a batch of which samples were read is over
        for number, batch in enumerate(self._batches(first), first):
            self._taken = (number + 1) * self.batch_size
            yield batch

    def peek(self) -> Sample:
        """The sample that ``read`` returns next."""
        if self._next is None:
            if self._samples is None:
                self._samples = self._each()
            self._next = next(self._samples)
        return self._next

    def read(self) -> Sample:
        """The next sample."""
        sample = self.peek()
        self._next = None
        self._taken += 1
        return sample

    def close(self) -> None:
        """End the threads that ``peek`` and ``read`` keep; the next ``read`` goes on after the last."""
        self._samples = self._next = None

    def state_dict(self) -> dict[str, Any]:
        """Where the mux is, after the last batch or sample that was taken; fit for JSON."""
        return {
            "version": 1,
            "datasets": [source.dataset.uuid for source in self._sources],
            "counts": [entry.count for entry in self._entries],
            "seed": self._seed,
            "samples": self._taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another mux of the same configuration and seed was.

        Raises:
            UsageError: the state is of other data sets, counts or seed.
        """
        mine = self.state_dict()
        for name in ("version", "datasets", "counts", "seed"):
            if state.get(name) != mine[name]:
                raise UsageError(f"the state has {name} {state.get(name)!r}, this mux {mine[name]!r}")
        samples = state.get("samples")
        if not isinstance(samples, int) or samples < 0:
            raise UsageError(f"the state is after {samples!r} samples; a number is needed")
        self.close()
        self._taken = samples

    def _batches(self, first: int) -> Iterator[Batch]:
        pipeline = Pipeline(
            self._requests(first), sources=self._sources, transforms=self._transforms, limits=self._limits
        )
        try:
            for filled in pipeline:
                yield finish(filled, device=self._device, losses=self._losses)
        finally:
            pipeline.close()

    def _each(self) -> Iterator[Sample]:
        first, skip = divmod(self._taken, self.batch_size)
        for batch in self._batches(first):
            for k in range(skip, len(batch)):
                yield Sample(batch.images[k], int(batch.labels[k]), int(batch.ids[k]))
            skip = 0

    def _requests(self, first: int) -> Iterator[Request]:
        streams = [
            _Endless(source, lanes=self._lanes, start=first * entry.count)
            for source, entry in zip(self._sources, self._entries, strict=True)
        ]
        batch = first
        while True:
            slots = draw.permutation(draw.key(draw.MUX, self._seed, len(self._sources), batch), self.batch_size)
            parts: list[Part] = []
            taken = 0
            for number, (entry, stream) in enumerate(zip(self._entries, streams, strict=True)):
                left = entry.count
                while left:
                    epoch, samples = stream.take(left)
                    parts.append(Part(number, epoch, samples, slots[taken : taken + len(samples)]))
                    taken += len(samples)
                    left -= len(samples)
            yield parts
            batch += 1
