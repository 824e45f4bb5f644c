"""Statistics of a loader: counts, bytes, and times of work and of waiting, which show what bounds a run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Stats:
    """Sums since the loader was made; two of them can be subtracted. Times are in seconds."""

    batches: int = 0  # handed to the consumer
    images: int = 0  # in these batches
    bytes: int = 0  # of the containers that were read
    damaged: int = 0  # samples replaced because their record was damaged
    fallbacks: int = 0  # images that the decoder of a GPU left to the CPU
    copied: int = 0  # batches copied to page-locked memory for a GPU, as theirs could not be page-locked
    reading: float = 0.0  # time that reader threads were busy, together
    working: float = 0.0  # time that decoding threads were busy cutting, decoding and augmenting, together
    waited_on_disk: float = 0.0  # time that the planner waited for containers to be read
    waited_on_decode: float = 0.0  # time that the consumer waited for its batch
    waited_on_consumer: float = 0.0  # time that finished batches waited for the consumer

    def __sub__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(Stats)})

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Stats)})


class StatsCounter:
    """Stats that any thread adds to, beginning with ``stats``."""

    def __init__(self, stats: Stats = Stats()) -> None:
        self._sums: dict[str, Any] = {f.name: getattr(stats, f.name) for f in fields(Stats)}
        self._lock = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Add to some of the sums."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def timed(self, name: str) -> _Timer:
        """Add the time that a ``with`` block takes."""
        return _Timer(self, name)

    @property
    def stats(self) -> Stats:
        """The sums at this moment."""
        with self._lock:
            return Stats(**self._sums)

    def __getstate__(self) -> Stats:
        return self.stats

    def __setstate__(self, stats: Stats) -> None:
        self.__init__(stats)  # type: ignore[misc]


class _Timer:
    """A context that adds its time to a sum; one of ``contextlib`` takes twice as long, 1 µs."""

    __slots__ = ("_counter", "_name", "_start")

    def __init__(self, counter: StatsCounter, name: str) -> None:
        self._counter, self._name = counter, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._counter.add(**{self._name: time.perf_counter() - self._start})
