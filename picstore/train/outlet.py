"""The last stage: batches from a feed, in this process or from a child, are put on their device and finished."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch

from picstore.train.batch import Batch
from picstore.train.damage import Losses
from picstore.train.feed import Feed, MakeRequests, Ready, run
from picstore.train.isolate import Child
from picstore.train.memory import Memory
from picstore.train.position import Worker
from picstore.train.stats import Counters, Stats


class Outlet:
    """Yields the batches of a feed.

    Args:
        feed: how batches are made.
        losses: told of damaged records.
        device: where batches go.
        callables: applied to the images there, one after the other.
        isolate: run the feed in a child process. A DataLoader's worker is one already, and has no child of its own.
        threads: None for one a core, shared among the workers of a DataLoader.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        losses: Losses,
        device: torch.device,
        callables: Sequence[Callable[[Any], Any]] = (),
        isolate: bool = False,
        threads: int | None = None,
    ) -> None:
        self._feed = replace(feed, strict=losses.strict)
        self._losses = losses
        self._device = device
        self._callables = tuple(callables)
        self._isolate = isolate
        self._threads = threads
        self._counters = Counters()
        self._memory = Memory()
        self._pid = os.getpid()
        self._child: Child | None = None

    @property
    def stats(self) -> Stats:
        """What was done and waited for."""
        return self._counters.stats

    def run(self, requests: MakeRequests) -> Generator[Ready]:
        """Batches in CPU memory, as fast as the consumer takes them; closing the generator stops their making."""
        worker = Worker.current()
        if self._isolate and not worker.count:
            source = self._living_child().run(requests)
        else:
            if self._pid != os.getpid():  # a fork: locks may be held for ever, and what they guard is the parent's
                self._memory, self._pid = Memory(), os.getpid()
            limits = self._feed.limits
            if self._threads is None and worker.count:
                limits = replace(limits, threads=max(1, limits.threads // worker.count))
            feed = replace(self._feed, limits=limits)
            source = run(feed, requests, memory=self._memory, counters=self._counters)
        return self._timed(source)

    def _timed(self, source: Generator[Ready]) -> Generator[Ready]:
        """The same, with the consumer's waiting counted."""
        try:
            while True:
                with self._counters.timed("waited_on_decode"):
                    ready = next(source, None)
                if ready is None:
                    return
                self._counters.add(batches=1, images=len(ready.labels), damaged=len(ready.lost))
                self._losses.report(ready.lost)
                yield ready
                del ready  # its memory may be free before the next is asked for
        finally:
            source.close()

    def finish(self, ready: Ready, *, seed: int) -> Batch:
        """Move a batch to its device and apply the callables, with torch's generators seeded by ``seed``."""
        batch = Batch(ready.images, ready.labels, ready.ids, ready.targets).to(self._device)
        if self._callables:
            images: Any = batch.images
            cuda = [self._device] if self._device.type == "cuda" else []
            with torch.random.fork_rng(devices=cuda):
                torch.manual_seed(seed & ((1 << 63) - 1))
                for transform in self._callables:
                    images = transform(images)
            batch = replace(batch, images=images)
        return batch

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _living_child(self) -> Child:
        """The child, which is kept from epoch to epoch, since starting it takes seconds."""
        if self._child is None or not self._child.alive:
            self._child = Child(self._feed, self._counters)
        return self._child

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": None, "_pid": -1, "_child": None}
