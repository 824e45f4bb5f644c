"""Fetching containers ahead of need, under a budget of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from picstore.storage.container import Container

Key: TypeAlias = tuple[int, int, int]  # source, lane, container
Load: TypeAlias = Callable[[int, int], Container]  # (source, container)


@dataclass(slots=True)
class _Held:
    future: Future[Container]
    size: int


class Fetcher:
    """Holds the containers that lanes are reading.

    A container is asked for under a key that names the lane too, so that each lane frees its own; the rare container in
    which one lane ends and the next begins is read for both. Threads: one asks, any may free.

    Args:
        load: reads a container, given source and number.
        budget: bytes of containers to hold.
        threads: readers.
    """

    def __init__(self, load: Load, *, budget: int, threads: int) -> None:
        self._load = load
        self._budget = budget
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="picstore-read")
        self._held: dict[Key, _Held] = {}
        self._bytes = 0
        self._freed = threading.Condition()

    def missing(self, keys: dict[Key, int]) -> int:
        """Bytes that asking for these containers (sizes by key) would add."""
        with self._freed:
            return sum(size for key, size in keys.items() if key not in self._held)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes stay within the budget."""
        with self._freed:
            return self._bytes + size <= self._budget

    def wait_for_room(self, size: int, give_up: Callable[[], bool]) -> None:
        """Wait until ``size`` more bytes fit, or ``give_up()``, asked at least whenever something is freed."""
        with self._freed:
            while self._bytes + size > self._budget and not give_up():
                self._freed.wait(timeout=0.1)

    def ask(self, keys: dict[Key, int]) -> dict[Key, Future[Container]]:
        """Start reading what is not held yet; the futures of all."""
        with self._freed:
            for key, size in keys.items():
                if key not in self._held:
                    source, _, number = key
                    self._held[key] = _Held(self._pool.submit(self._load, source, number), size)
                    self._bytes += size
            return {key: self._held[key].future for key in keys}

    def free(self, keys: set[Key]) -> None:
        """Give up containers."""
        with self._freed:
            for key in keys:
                held = self._held.pop(key, None)
                if held is not None:
                    self._bytes -= held.size
            self._freed.notify_all()

    def close(self) -> None:
        """Stop reading."""
        self._pool.shutdown(wait=True, cancel_futures=True)
