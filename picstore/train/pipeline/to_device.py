"""Stages that hand HostBatches over as tensors: in the same memory, or ahead of the consumer on a GPU.

    source ──→ receiving ──→ starting, on one of two CUDA streams ──→ finishing ─────────────→ consumer
               thread        thread: copy, or decode and augment      thread: sleep until      let its own stream wait
                             all batches that wait; record an event   the decoder has said     for the event
                                                                      what it refuses

The consumer's thread does not wait for the GPU, and kernels of different streams do not wait for each other. A batch is
started at once while fewer than two are ahead of the consumer. Otherwise batches wait until several can be started
together, which takes hardly more Python time than starting one, so that little time is lost if the GPU or the consumer
is behind. Starting batches together changes no pixel.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.spec import OutputSpec
from picstore.train.pipeline.device_decoding import BatchMaker, Finish, MadeBatch
from picstore.train.pipeline.own_threads import ThreadPool, close_at_exit

logger = logging.getLogger("picstore")

STREAMS = 2  # Number of CUDA streams: 2, because the kernels of one batch do not fill a GPU.
_STARTED = 2  # If fewer batches than this are started and not taken, start one without waiting for others.


def most_ahead(make: BatchMaker) -> int:
    """Return the maximum number of batches requested from the source that the consumer has not taken.

    Six batches of 256 images of 224 × 224 pixels take 231 MB of the GPU's memory.
    """
    return _STARTED + max(make.together, STREAMS)


class HostSource(Protocol):
    """Source of batches in CPU memory: a Pipeline, a ProcessSequence or a RemoteSequence."""

    def receive(self) -> HostBatch | None:
        """Return the next batch, or None at the end; do not call this again after the end."""

    def close(self) -> None:
        """Stop making batches, and end the threads or processes that the source owns."""


class DeviceStage(Protocol):
    """Stage of a loader that gives batches on their device: a TensorStage or an AheadStage."""

    def receive(self) -> MadeBatch | None:
        """Return the next batch, or None at the end; do not call this again after the end."""

    def close(self) -> None:
        """End the threads of the stage, and close its source."""


class TensorStage:
    """Stage that turns decoded batches into tensors, in place on the CPU or copied to a device without CUDA streams."""

    def __init__(self, source: HostSource, *, output: OutputSpec, device: torch.device) -> None:
        self._source, self._groups, self._device = source, output.groups, device
        self._dtype: torch.dtype = getattr(torch, output.dtype)

    def receive(self) -> MadeBatch | None:
        host = self._source.receive()
        if host is None:
            return None
        batch = Batch.from_host(host, image_tensors(host.images, self._dtype), self._groups).to(self._device)
        host.release()
        return MadeBatch(batch, host.damage)

    def close(self) -> None:
        self._source.close()


class AheadStage:
    """Stage that makes batches on a device with ``make``, in order and ahead of the consumer."""

    def __init__(self, source: HostSource, *, make: BatchMaker, device: torch.device) -> None:
        self._source, self._make = source, make
        self._streams, self._most_ahead = _rotate_streams(device), most_ahead(make)
        # Three threads receive, start and finish batches. If a call of ``make`` takes one batch, two more threads make
        # batches, so that one prepares a batch while the other waits.
        self._pool = ThreadPool(3 + (STREAMS if make.together == 1 else 0), "device")
        self._changed = threading.Condition()  # Guards ``_received``, ``_ahead``, ``_begun`` and ``_closed``.
        self._received: deque[HostBatch | BaseException | None] = deque()
        # Batches that the consumer has not taken: ``_ahead`` were requested; of these, ``_begun`` were started.
        self._ahead = self._begun = 0
        self._closed = False
        self._started: SimpleQueue[tuple[Finish, torch.cuda.Stream | None] | None] = SimpleQueue()
        self._finished: SimpleQueue[MadeBatch | BaseException | None] = SimpleQueue()
        # ``_is_first`` is true until the first batch is started, alone, so that the consumer gets it sooner.
        self._running, self._is_first = False, True
        self._pid = os.getpid()
        close_at_exit(self)

    def receive(self) -> MadeBatch | None:
        """Return the next batch, or raise an error of the source or of ``make``.

        Raises:
            CancelledError: another thread closed the stage, or its process was forked.
        """
        if self._pid != os.getpid():
            raise CancelledError
        if not self._running and not self._closed:
            self._running = True
            # ``_finish_all`` comes first, because ``close`` cancels calls that no thread has begun, and batches that
            # ``_start_all`` has started must be finished.
            for work in (self._finish_all, self._start_all, self._receive_all):
                self._pool.submit(work)
        made = None if self._closed else self._finished.get()
        with self._changed:
            if self._closed:
                raise CancelledError
            self._ahead -= 1
            self._begun -= 1
            self._changed.notify_all()
        if isinstance(made, BaseException):
            try:
                raise made
            finally:
                del made  # Break the reference cycle of error, traceback and frame.
        return None if made is None else made.hand_over()

    def close(self) -> None:
        """End this stage's threads, and close its source; do nothing in a fork."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            self._received.clear()
            self._changed.notify_all()
        self._finished.put(None)  # wakes a consumer whose thread waits in ``receive``
        self._pool.close()
        self._source.close()

    def _receive_all(self) -> None:
        going_on = True
        while going_on:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._ahead < self._most_ahead)
                if self._closed:
                    return
                self._ahead += 1
            going_on = self._receive_one()

    def _receive_one(self) -> bool:
        """Move a batch from the source to ``_received``, keeping no reference here; return whether one may follow."""
        received: HostBatch | BaseException | None
        try:
            received = self._source.receive()
        except BaseException as error:  # ``receive`` raises the error for the consumer.
            received = error
        with self._changed:
            if not self._closed:
                self._received.append(received)
                self._changed.notify_all()
        return not _is_last(received)

    def _start_all(self) -> None:
        try:
            while self._start_some():
                pass
        except BaseException as error:
            self._started.put((_answer(error), None))
        finally:
            self._started.put(None)

    def _start_some(self) -> bool:
        """Wait until batches may start; start as many in one call as ``make`` takes. Return False after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_start())
            if self._closed:
                return False
            first = self._received.popleft()
            self._begun += 1
            if isinstance(first, BaseException) or first is None:
                self._started.put((_answer(first), None))
                return False
            hosts = [first]
            while self._received and not self._is_first:
                following = self._received[0]
                if isinstance(following, BaseException) or following is None:
                    break
                if not self._make.takes([*hosts, following]):
                    break
                hosts.append(following)
                self._received.popleft()
                self._begun += 1
            self._is_first = False
        stream = next(self._streams)
        if self._make.together == 1:
            self._started.put((self._pool.submit(self._make_one, hosts.pop(), stream).result, stream))
            return True
        with _current(stream):
            for finish in self._start_together(hosts):
                self._started.put((finish, stream))
        return True

    def _make_one(self, host: HostBatch, stream: torch.cuda.Stream | None) -> MadeBatch:
        with _current(stream):
            return self._make.start([host])[0]()

    def _may_start(self) -> bool:
        """Return whether to start the received batches now, rather than wait for others to start in the same call."""
        if not self._received:
            return False
        return self._begun < _STARTED or len(self._received) >= self._make.together or _is_last(self._received[-1])

    def _start_together(self, hosts: list[HostBatch]) -> Iterator[Finish]:
        """Start batches in one call or, after an error, one by one, so that only the batch with the error fails."""
        try:
            started = self._make.start(hosts)
        except BaseException as error:
            if len(hosts) == 1:
                yield _answer(error)
                return
            if isinstance(error, torch.cuda.OutOfMemoryError):
                _warn_of_memory()
        else:
            yield from started
            return
        for host in hosts:
            yield from self._start_together([host])

    def _finish_all(self) -> None:
        """Finish all batches that were started, even after ``close``, because the GPU may read their memory."""
        while self._finish_one():
            pass
        # Without this end mark, a consumer that calls ``receive`` again after an error would wait forever.
        self._finished.put(None)

    def _finish_one(self) -> bool:
        if (started := self._started.get()) is None:
            return False
        finish, stream = started
        try:
            with _current(stream):
                self._finished.put(finish())
        except BaseException as error:
            self._finished.put(error)
        return True


def _is_last(received: HostBatch | BaseException | None) -> bool:
    return received is None or isinstance(received, BaseException)


def _answer(error: BaseException | None) -> Any:
    """Return a function that raises ``error`` or, if ``error`` is None, returns None for the end of the batches."""

    def finish() -> None:
        if error is not None:
            raise error

    return finish


@cache
def _warn_of_memory() -> None:
    logger.warning("the GPU's memory does not suffice to decode batches together; each is decoded by itself")


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    """Return the streams that all stages of a device share, because torch keeps memory for each stream ever made."""
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]  # type: ignore[no-untyped-call]


def _current(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _rotate_streams(device: torch.device) -> Iterator[torch.cuda.Stream | None]:
    return itertools.cycle(_streams(device) if device.type == "cuda" else [None])
