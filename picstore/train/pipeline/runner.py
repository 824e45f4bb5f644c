"""The last stage: batches from a feed, in this process or from a child, are put on their device and finished."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch

from picstore.errors import Damage
from picstore.train.batch import Batch
from picstore.train.batching.damage import DamageLog
from picstore.train.batching.spec import HostBatch, MakeRequests, PipelineSpec
from picstore.train.buffers import Memory
from picstore.train.cuda.decode import find_decoder, numbered
from picstore.train.order.cursor import Worker
from picstore.train.pipeline.process import LoaderProcess
from picstore.train.pipeline.stats import Counters, Stats


class PipelineRunner:
    """Yields the batches of a feed.

    Args:
        feed: how batches are made.
        losses: told of damaged records.
        device: where batches go.
        decoder: that makes images of streams, see ``cuda/decode.py``.
        callables: applied to the images there, one after the other.
        isolate: run the feed in a child process. A DataLoader's worker is one already, and has no child of its own.
        threads: None for one a core, shared among the workers of a DataLoader.
    """

    def __init__(
        self,
        feed: PipelineSpec,
        *,
        losses: DamageLog,
        device: torch.device,
        decoder: str = "auto",
        callables: Sequence[Callable[[Any], Any]] = (),
        isolate: bool = True,
        threads: int | None = None,
    ) -> None:
        form = replace(feed.form, decoded=find_decoder(decoder, device) is None)
        self._feed = replace(feed, form=form, strict=losses.strict)
        self._losses = losses
        self._device, self._decoder = device, decoder
        self._callables = tuple(callables)
        self._isolate = isolate and bool(sys.executable) and not hasattr(sys, "frozen")  # is there a Python to start?
        self._threads = threads
        self._counters = Counters()
        self._memory = Memory()
        self._pid = os.getpid()
        self._child: LoaderProcess | None = None
        self._kept: tuple[int, tuple[int, int], Generator[Batch]] | None = None  # process, place, feed

    @property
    def stats(self) -> Stats:
        """What was done and waited for."""
        return self._counters.stats

    def feed(self, place: tuple[int, int], requests: MakeRequests) -> Generator[Batch]:
        """Batches but for the callables, as fast as the consumer takes them; closing the generator stops their making.

        Args:
            place: where they begin; what was kept for this place goes on.
            requests: what is wanted from there on.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            if kept[:2] == (os.getpid(), place):
                return kept[2]
            kept[2].close()
        device = numbered(self._device)
        decode = find_decoder(self._decoder, device)
        source, form = self._run(requests), self._feed.form
        if decode is None:
            batches = _as_tensors(source, getattr(torch, form.dtype), device)
        else:
            from picstore.train.pipeline.device import make_ahead

            batches = make_ahead(source, form=form, decode=decode, device=device, strict=self._losses.strict)
        return _counted(batches, self._counters, self._losses)

    def keep(self, place: tuple[int, int], feed: Generator[Batch]) -> None:
        """Let a feed go on making batches; the next iteration may begin at ``place``, where it is."""
        self._drop_kept()
        self._kept = (os.getpid(), place, feed)

    def _drop_kept(self) -> None:
        if self._kept is not None:
            self._kept[2].close()
            self._kept = None

    def _run(self, requests: MakeRequests) -> Generator[HostBatch]:
        worker = Worker.current()
        if self._isolate and not worker.count:
            return self._isolated(requests)
        if self._pid != os.getpid():  # a fork: locks may be held for ever, and what they guard is the parent's
            self._memory, self._counters, self._pid = Memory(), Counters(self._counters.stats), os.getpid()
        limits = self._feed.limits
        if self._threads is None and worker.count:
            limits = replace(limits, threads=max(1, limits.threads // worker.count))
        from picstore.train.pipeline.pipeline import (
            make_batches,  # with its kernels, which a parent of a child can do without
        )

        feed = replace(self._feed, limits=limits)
        return make_batches(feed, requests, memory=self._memory, counters=self._counters)

    def _isolated(self, requests: MakeRequests) -> Generator[HostBatch]:
        """Batches from the child, which is kept from epoch to epoch, since starting it takes half a second."""
        if self._child is None or not self._child.alive:
            self._child = LoaderProcess(self._feed, self._counters)
        if not self._child.running:
            yield from self._child.run(requests)
            return
        other = LoaderProcess(self._feed, self._counters)  # as long as another iterator is not over
        try:
            yield from other.run(requests)
        finally:
            other.close()

    def finish(self, batch: Batch, *, seed: int) -> Batch:
        """Apply the callables to a batch on its device, with torch's generators seeded by ``seed``."""
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
        """End threads and child."""
        self._drop_kept()
        if self._child is not None:
            self._child.close()
            self._child = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": None, "_pid": -1, "_child": None, "_kept": None}


def _as_tensors(
    source: Generator[HostBatch], dtype: torch.dtype, device: torch.device
) -> Generator[tuple[Batch, list[Damage]]]:
    """Decoded batches as tensors on a device, and what was lost."""
    try:
        for ready in source:
            yield Batch.of(ready, dtype).to(device), ready.lost
            del ready  # its memory may be free before the next is asked for
    finally:
        source.close()


def _counted(source: Generator[tuple[Batch, list[Damage]]], counters: Counters, losses: DamageLog) -> Generator[Batch]:
    """The same batches; what is taken, lost and waited for is noted.

    No method: a feed that an outlet keeps must not keep the outlet.
    """
    try:
        while True:
            with counters.timed("waited_on_decode"):
                made = next(source, None)
            if made is None:
                return
            batch, lost = made
            counters.add(batches=1, images=len(batch), damaged=len(lost))
            losses.report(lost)
            yield batch
            del made, batch  # as above
    finally:
        source.close()
