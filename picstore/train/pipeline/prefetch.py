"""Fetching containers ahead of need, under a budget of bytes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from picstore.errors import Damage
from picstore.storage.format.container import Container
from picstore.train.pipeline.thread_pool import Pool

Key: TypeAlias = tuple[int, int, int]  # source, epoch, container
Loaded: TypeAlias = "Container | Damage"  # or why nothing of it can be read
Load: TypeAlias = Callable[[int, int], Loaded]  # (source, container)

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class Want:
    """What one batch wants of a container.

    Attributes:
        size: bytes of the container.
        lanes: that read it in this batch.
        done: those of the lanes that do not need it afterwards.
    """

    size: int
    lanes: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Held:
    future: Future[Loaded]
    size: int
    batches: int = 0  # that have asked for it and not released it
    lanes: set[int] = field(default_factory=set)  # that are still to read in it


class Fetcher:
    """Holds the containers that lanes are reading and those that the next batches will.

    A container is held from the first batch that asks for it until every lane that reads it is done with it and every
    batch that asked has released it. Batches ask in order; they release in any order, from any thread.

    The budget is exceeded by nothing but a batch whose own containers exceed it. When the lanes together hold more than
    the budget allows, containers that no batch needs at the moment are given up and read again later: the one used most
    recently first, since lanes take turns and its turn is the farthest off.

    Args:
        load: reads a container, given source and number.
        budget: bytes of containers to hold.
        threads: readers.
    """

    def __init__(self, load: Load, *, budget: int, threads: int) -> None:
        self._load = load
        self._budget = budget
        self._pool = Pool(threads, "read")
        self._held: dict[Key, _Held] = {}  # in the order of their last use
        self._bytes = 0
        self._earliest: dict[int, int] = {}  # epoch of each source that is still read
        self._unreleased = 0  # batches
        self._closed = False
        self._warned = False
        self._changed = threading.Condition()

    def ask(self, wants: dict[Key, Want], *, wait: bool) -> dict[Key, Future[Loaded]] | None:
        """Start reading what is not held yet.

        Args:
            wait: until there is room, if need be; right only for a batch that comes next, with all earlier ones on
                their way to be released.

        Returns:
            The futures of all, or None where there is no room, or the fetcher was closed.
        """
        with self._changed:
            self._end_epochs(wants)
            missing = sum(want.size for key, want in wants.items() if key not in self._held)
            while self._bytes + missing > self._budget and not self._closed:
                if not wait:
                    return None
                if not self._unreleased:
                    self._give_up(missing, wants)
                    break
                self._changed.wait()
            if self._closed:
                return None
            for key, want in wants.items():
                self._use(key, want)
            self._unreleased += 1
            return {key: self._held[key].future for key in wants}

    def release(self, wants: dict[Key, Want]) -> None:
        """Say that a batch that asked is finished."""
        with self._changed:
            self._unreleased -= 1
            for key, want in wants.items():
                held = self._held[key]
                held.batches -= 1
                held.lanes -= want.done
                if not held.batches and not held.lanes:
                    self._drop(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading and waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.close()

    def _use(self, key: Key, want: Want) -> None:
        held = self._held.pop(key, None)
        if held is None:
            source, _, number = key
            held = _Held(self._pool.submit(self._load, source, number), want.size)
            self._bytes += want.size
        held.batches += 1
        held.lanes |= want.lanes
        self._held[key] = held

    def _end_epochs(self, wants: dict[Key, Want]) -> None:
        """Forget lanes of epochs before those of a batch: what they have not read is left out by ``drop_last``."""
        earliest: dict[int, int] = {}
        for source, epoch, _ in wants:
            earliest[source] = min(epoch, earliest.get(source, epoch))
        if all(self._earliest.get(source) == epoch for source, epoch in earliest.items()):
            return
        self._earliest.update(earliest)
        for key in [key for key in self._held if key[1] < self._earliest.get(key[0], 0)]:
            self._held[key].lanes.clear()
            if not self._held[key].batches:
                self._drop(key)

    def _give_up(self, missing: int, wants: dict[Key, Want]) -> None:
        """Make room of what no batch holds, the last used first."""
        for key in [key for key in reversed(self._held) if key not in wants]:
            if self._bytes + missing <= self._budget:
                break
            if not self._warned:
                self._warned = True
                logger.warning(
                    "a budget of %d bytes is less than the lanes read at a time, so containers are read more than "
                    "once; raise the budget, or use fewer lanes or smaller containers",
                    self._budget,
                )
            self._drop(key)

    def _drop(self, key: Key) -> None:
        self._bytes -= self._held.pop(key).size
