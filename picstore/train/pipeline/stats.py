"""Statistics of a loader: counts, bytes, and times of work and of waits, which show the bottleneck of a run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Stats:
    """Sums since the loader was made. Subtract two Stats for the sums of the time between them.

    Attributes:
        batches, images: numbers of batches and of images handed to the consumer.
        bytes: size of the containers read, in bytes.
        damaged: number of samples replaced because their record was damaged.
        fallbacks: number of images decoded on the CPU instead of by the GPU's decoder.
        copied: number of batches copied to page-locked memory because their memory could not be page-locked.
        reading: seconds that reader threads were busy, summed over threads.
        working: seconds that decoding threads were busy, summed over threads.
        waited_on_disk: seconds that planning of batches waited for containers to be read.
        waited_on_decode: seconds that the consumer waited for batches.
        waited_on_consumer: seconds that finished batches waited for the consumer.
    """

    batches: int = 0
    images: int = 0
    bytes: int = 0
    damaged: int = 0
    fallbacks: int = 0
    copied: int = 0
    reading: float = 0.0
    working: float = 0.0
    waited_on_disk: float = 0.0
    waited_on_decode: float = 0.0
    waited_on_consumer: float = 0.0

    def __sub__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(Stats)})

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Stats)})


class StatsCounter:
    """Counter of Stats that any thread may add to, starting at ``stats``."""

    def __init__(self, stats: Stats = Stats()) -> None:
        self._sums: dict[str, Any] = {f.name: getattr(stats, f.name) for f in fields(Stats)}
        self._lock = threading.Lock()

    def add(self, **amounts: float) -> None:
        """Add each keyword argument to the sum that has its name."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def timed(self, name: str) -> _Timer:
        """Return a context that adds the seconds that its ``with`` block takes to the sum ``name``."""
        return _Timer(self, name)

    @property
    def stats(self) -> Stats:
        """The sums up to now."""
        with self._lock:
            return Stats(**self._sums)

    def __getstate__(self) -> Stats:
        return self.stats

    def __setstate__(self, stats: Stats) -> None:
        self.__init__(stats)  # type: ignore[misc]


class _Timer:
    """Context that adds the time of its block to a sum; a ``contextlib`` context would take twice as long, 1 µs."""

    __slots__ = ("_counter", "_name", "_start")

    def __init__(self, counter: StatsCounter, name: str) -> None:
        self._counter, self._name = counter, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._counter.add(**{self._name: time.perf_counter() - self._start})
