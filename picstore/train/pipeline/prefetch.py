"""Prefetching of containers, under a budget of bytes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from picstore.train.batching.gather import ReadResult
from picstore.train.pipeline.thread_pool import ThreadPool

ContainerKey: TypeAlias = tuple[int, int, int]  # source, epoch, container

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """The use that one batch makes of a container of ``size`` bytes."""

    size: int
    lanes: set[int] = field(default_factory=set)  # those that read it in this batch
    done: set[int] = field(default_factory=set)  # those of the lanes that do not need it afterwards


@dataclass(slots=True)
class _HeldContainer:
    future: Future[ReadResult]
    size: int
    batches: int = 0  # those that have requested it and not released it
    lanes: set[int] = field(default_factory=set)  # those that are still to read in it


class Prefetcher:
    """Holds the containers that lanes read now and those that the next batches need.

    A container is held from the first batch that requests it until every lane that reads it is done with it and every
    batch that requested it has released it. Batches request in order; they release in any order, from any thread.

    The budget is exceeded by nothing but a batch whose own containers exceed it. When the lanes together hold more than
    the budget allows, containers that no batch needs at the moment are evicted and read again later: the one used most
    recently first, since lanes take turns and its turn is the farthest off.
    """

    def __init__(self, read: Callable[[int, int, int], ReadResult], *, budget: int, threads: int) -> None:
        self._read = read  # a container, given source, epoch and number
        self._budget = budget  # bytes of containers to hold
        self._pool = ThreadPool(threads, "read")
        self._held: dict[ContainerKey, _HeldContainer] = {}  # in the order of their last use
        self._bytes = 0
        self._earliest: dict[int, int] = {}  # epoch of each source that is still read
        self._unreleased = 0  # batches
        self._closed = self._warned = False
        self._changed = threading.Condition()

    def request(
        self, uses: dict[ContainerKey, ContainerUse], *, wait: bool
    ) -> dict[ContainerKey, Future[ReadResult]] | None:
        """Start reading what is not held yet; None if the budget does not allow it or the prefetcher is closed.

        ``wait`` until the budget allows it only for the batch that comes next, with all earlier ones about to be
        released.
        """
        with self._changed:
            self._end_epochs(uses)
            missing = sum(use.size for key, use in uses.items() if key not in self._held)
            while self._bytes + missing > self._budget and not self._closed:
                if not wait:
                    return None
                if not self._unreleased:
                    self._evict(missing, uses)
                    break
                self._changed.wait()
            if self._closed:
                return None
            for key, use in uses.items():
                self._hold(key, use)
            self._unreleased += 1
            return {key: self._held[key].future for key in uses}

    def release(self, uses: dict[ContainerKey, ContainerUse]) -> None:
        """Note that a batch that requested containers is finished."""
        with self._changed:
            self._unreleased -= 1
            for key, use in uses.items():
                held = self._held[key]
                held.batches -= 1
                held.lanes -= use.done
                if not held.batches and not held.lanes:
                    self._drop(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading and waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._pool.close()

    def _hold(self, key: ContainerKey, use: ContainerUse) -> None:
        held = self._held.pop(key, None)
        if held is None:
            held = _HeldContainer(self._pool.submit(self._read, *key), use.size)
            self._bytes += use.size
        held.batches += 1
        held.lanes |= use.lanes
        self._held[key] = held

    def _end_epochs(self, uses: dict[ContainerKey, ContainerUse]) -> None:
        """Drop lanes of epochs before those of a batch: ``drop_last`` leaves out what they have not read."""
        earliest: dict[int, int] = {}
        for source, epoch, _ in uses:
            earliest[source] = min(epoch, earliest.get(source, epoch))
        if all(self._earliest.get(source) == epoch for source, epoch in earliest.items()):
            return
        self._earliest.update(earliest)
        for key in [key for key in self._held if key[1] < self._earliest.get(key[0], 0)]:
            self._held[key].lanes.clear()
            if not self._held[key].batches:
                self._drop(key)

    def _evict(self, missing: int, uses: dict[ContainerKey, ContainerUse]) -> None:
        """Drop containers that no batch holds, the last used first, until the budget allows ``missing`` bytes more."""
        for key in [key for key in reversed(self._held) if key not in uses]:
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

    def _drop(self, key: ContainerKey) -> None:
        self._bytes -= self._held.pop(key).size
