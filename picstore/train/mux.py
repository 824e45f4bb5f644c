"""DataMux: batches mixed from several data sets at exact counts, endlessly, as PicPoc's class of that name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from picstore import draw
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, Part, Source
from picstore.train.geometry import Transform
from picstore.train.loader import DEFAULT_BUDGET, check_on_damage, default_threads, finish
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
    """
    config = Path(path)
    try:
        words = config.read_text().split()
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
        if entry.count < 1:
            raise UsageError(f"{config}: {name} has count {count}; at least 1 is needed")
        entries.append(entry)
    return entries


class _Endless:
    """The samples of one source, epoch after epoch."""

    def __init__(self, source: Source, *, start: int) -> None:
        self._source = source
        self._epoch, self._at = divmod(start, len(source.dataset))
        self._order = self._new_order()

    def _new_order(self) -> Epoch:
        counts = self._source.dataset.rows["records"]
        return Epoch(counts, seed=self._source.seed, epoch=self._epoch, lanes=MIN_LANES)

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

    Each data set begins a new epoch of its own when it is exhausted. Use it either by batches (iterate) or by samples
    (``peek`` and ``read``).

    Args:
        config: a file in PicPoc's format, see :func:`read_config`.
        transform, seed, device, threads, on_damage, budget: as of :class:`picstore.Loader`.
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
        budget: int = DEFAULT_BUDGET,
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
        self._limits = Limits(threads or default_threads(), budget)
        self._raise = check_on_damage(on_damage) == "raise"
        self._batch = 0
        self._samples: Iterator[Sample] | None = None
        self._next: Sample | None = None
        self.damaged = 0

    @property
    def batch_size(self) -> int:
        """Records in each batch."""
        return sum(entry.count for entry in self._entries)

    def __iter__(self) -> Iterator[Batch]:
        pipeline = Pipeline(
            self._requests(self._batch), sources=self._sources, transforms=self._transforms, limits=self._limits
        )
        try:
            for filled in pipeline:
                batch, damaged = finish(filled, device=self._device, stop=self._raise)
                self.damaged += damaged
                self._batch += 1
                yield batch
        finally:
            pipeline.close()

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
        return sample

    def close(self) -> None:
        """End the threads that ``peek`` and ``read`` keep."""
        self._samples = self._next = None

    def _each(self) -> Iterator[Sample]:
        for batch in self:
            for image, label, id_ in zip(batch.images, batch.labels.tolist(), batch.ids.tolist(), strict=True):
                yield Sample(image, label, id_)

    def _requests(self, first: int) -> Iterator[Request]:
        streams = [
            _Endless(source, start=first * entry.count)
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
