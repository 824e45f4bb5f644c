"""Stages that make tensors of HostBatches: in the same memory, or ahead of the consumer on a GPU.

    source ──→ thread with a CUDA stream of its own ──────────────→ consumer
               copy, or decode and augment; record an event         let its own stream wait for the event

The consumer's thread waits for no GPU, nor do kernels of different batches for each other.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.spec import OutputSpec
from picstore.train.pipeline.at_exit import close_at_exit
from picstore.train.pipeline.device_batch import MadeBatch, MakeBatch
from picstore.train.pipeline.thread_pool import ThreadPool

THREADS = 2  # one decodes while the other prepares; torchvision's decoder has a lock of its own
_AHEAD = 2  # batches that wait for the consumer


class HostSource(Protocol):
    """Batches in CPU memory: a Pipeline, a ProcessSequence or a RemoteSequence."""

    def receive(self) -> HostBatch | None:
        """The next batch; None at the end, after which there must be no further call."""

    def close(self) -> None:
        """End its threads."""


class DeviceStage(Protocol):
    """Batches on their device."""

    def receive(self) -> MadeBatch | None:
        """The next batch; None at the end, after which there must be no further call."""

    def close(self) -> None:
        """End its threads and its source."""


class TensorStage:
    """Makes tensors of decoded batches in their memory, or copied to a device that has no streams."""

    def __init__(self, source: HostSource, *, output: OutputSpec, device: torch.device) -> None:
        self._source, self._groups, self._device = source, output.groups, device
        self._dtype: torch.dtype = getattr(torch, output.dtype)

    def receive(self) -> MadeBatch | None:
        """Return the next batch; raises what the source raises."""
        host = self._source.receive()
        if host is None:
            return None
        batch = Batch.from_host(host, image_tensors(host.images, self._dtype), self._groups).to(self._device)
        host.release()
        return MadeBatch(batch, host.damage)

    def close(self) -> None:
        """End the source."""
        self._source.close()


class AheadStage:
    """Makes batches on a device by ``make``, which threads call, ahead of the consumer and in order."""

    def __init__(self, source: HostSource, *, make: MakeBatch, device: torch.device) -> None:
        self._source = _OrderedSource(source)
        self._maker = _ThreadMaker(make, device, itertools.count())
        self._pool = ThreadPool(THREADS, "device")
        self._pending: deque[Future[_QueuedBatch | None]] = deque()
        self._submitted = 0
        close_at_exit(self)

    def receive(self) -> MadeBatch | None:
        """Return the next batch; raises what the source and ``make`` raise."""
        self._submit()
        queued = self._pending.popleft().result()
        if queued is None:
            return None
        self._submit()
        return queued.hand_over()

    def close(self) -> None:
        """End the threads and the source."""
        self._pool.close()
        self._source.close()

    def _submit(self) -> None:
        while len(self._pending) < _AHEAD + THREADS:
            self._pending.append(self._pool.submit(self._make, self._submitted))
            self._submitted += 1

    def _make(self, number: int) -> _QueuedBatch | None:
        host = self._source.receive(number)
        return None if host is None else self._maker.make_batch(host)


@dataclass(frozen=True, slots=True)
class _QueuedBatch:
    """A batch on its device; ``event`` is what the consumer's stream has to wait for, None on a CPU."""

    made: MadeBatch
    event: torch.cuda.Event | None

    def hand_over(self) -> MadeBatch:
        """Make all that follows on the current stream wait until the batch is made."""
        if self.event is not None:
            batch = self.made.batch
            stream = torch.cuda.current_stream(batch.labels.device)
            stream.wait_event(self.event)
            batch.record_stream(stream)  # or its memory might be used again while the consumer's kernels read it
        return self.made


class _OrderedSource:
    """Receives from a source in the order of numbers, from several threads."""

    def __init__(self, source: HostSource) -> None:
        self._source = source
        self._next = 0
        self._ended = False
        self._changed = threading.Condition()

    def receive(self, number: int) -> HostBatch | None:
        """Batch ``number``; None after the end or an error."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
            try:
                if self._ended:
                    return None
                self._ended = True
                batch = self._source.receive()
                self._ended = batch is None
                return batch
            finally:
                self._next += 1
                self._changed.notify_all()

    def close(self) -> None:
        self._source.close()


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    """The streams of all stages of a device, one a thread: torch keeps free memory for each stream ever made."""
    return [torch.cuda.Stream(device) for _ in range(THREADS)]  # type: ignore[no-untyped-call]


class _ThreadMaker(threading.local):
    """Makes batches; each thread on a CUDA stream of its own."""

    def __init__(self, make: MakeBatch, device: torch.device, numbers: itertools.count[int]) -> None:
        self._make = make
        self._stream = _streams(device)[next(numbers) % THREADS] if device.type == "cuda" else None

    def make_batch(self, host: HostBatch) -> _QueuedBatch:
        if self._stream is None:
            return _QueuedBatch(self._make(host), event=None)
        with torch.cuda.stream(self._stream):
            return _QueuedBatch(self._make(host), self._stream.record_event())
