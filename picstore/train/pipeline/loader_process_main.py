"""The main program of a loader process: the child's side of ``loader_process.py``, with a pipeline for each span.

This module does not import torch, which would cost a second and 400 MB.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from picstore.arrays import U8
from picstore.errors import PicstoreError, UsageError
from picstore.helper_process import allow_imports
from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import (
    KEPT_BATCHES,
    BufferPool,
    BufferPools,
    anonymous_memory,
    has_hung_up,
    map_memory,
    send_descriptor,
    share_array,
)
from picstore.train.order.spans import Span
from picstore.train.pipeline.batch_threads import Pipeline
from picstore.train.pipeline.loader_process import AHEAD, Message, SequenceShare
from picstore.train.pipeline.stats import StatsCounter

_PARENT_SECONDS = 1.0  # seconds between checks that the parent lives
# Seconds from noticing the parent's death to ending this process; docs/reference/loader.md promises at most 5 in all.
_LAST_SECONDS = 3.0


@dataclass(slots=True)
class _SharedBlock:
    """A block of shared memory; ``descriptor`` is its file descriptor, or None once that was sent to the parent."""

    number: int
    start: int
    size: int
    descriptor: int | None

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None


class _SharedBlocks:
    """The child's blocks of shared memory. The parent maps a block from its first batch until the child frees it."""

    def __init__(self) -> None:
        self._blocks: dict[int, _SharedBlock] = {}  # Key: address of the block.
        self._gone: list[int] = []  # serial numbers of freed blocks that are not yet reported to the parent
        self._next = 0

    def allocate(self, size: int) -> U8:
        descriptor = anonymous_memory(size)
        try:
            memory: U8 = np.asarray(map_memory(descriptor, size))
        except OSError:
            os.close(descriptor)
            raise
        address = memory.ctypes.data
        self._blocks[address] = _SharedBlock(self._next, address, size, descriptor)
        weakref.finalize(memory, self._forget, address).atexit = False
        self._next += 1
        return memory

    def _forget(self, address: int) -> None:
        block = self._blocks.pop(address)
        block.close()
        self._gone.append(block.number)

    def take_gone(self) -> list[int]:
        return [self._gone.pop() for _ in range(len(self._gone))]

    def find(self, address: int) -> _SharedBlock:
        for block in self._blocks.copy().values():  # a copy, because other threads change the dict
            if block.start <= address < block.start + block.size:
                return block
        raise PicstoreError(f"no shared memory holds the address {address}")


class _HungUp(BaseException):
    """Error raised when the parent has closed the socket; not an EOFError, because unpickling may raise EOFError."""


@contextlib.contextmanager
def _hanging_up() -> Iterator[None]:
    """In a ``with`` block, raise ``_HungUp`` instead of the errors that the socket raises once the parent is gone."""
    try:
        yield
    except (EOFError, OSError) as error:
        if not has_hung_up(error):
            raise
        raise _HungUp from error


class _Unpickler(pickle.Unpickler):
    """Unpickler that ends the ban on ``NUMBA_EXTRAS`` (slow imports of numba) before it imports a user's module."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules and not module.startswith("picstore."):
            allow_imports()
        return super().find_class(module, name)


class ProcessServer:
    """Server in the child, which follows the parent's messages, and makes and sends batches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks = _SharedBlocks()
        self._buffers = BufferPools(batches=BufferPool(KEPT_BATCHES, allocate=self._blocks.allocate))
        self._counter = StatsCounter()
        # Batches whose memory the parent may be using. Key: the batch's number; value: batch, and address of its block.
        self._sent: dict[int, tuple[HostBatch, int]] = {}
        self._next_number = 0

    def serve(self) -> None:
        """Follow the parent's messages until the parent hangs up, which raises ``_HungUp``."""
        spec: PipelineSpec | Exception
        try:
            spec = self._receive()
        except (PicstoreError, OSError) as error:  # A dataset of the received specification cannot be opened.
            spec = error
        except (ImportError, AttributeError) as error:
            text = f"the loader's process cannot import collate or a transform: {error}"
            spec = UsageError(f"{text}; define them in modules that it finds, or give isolate=False")
        while True:
            verb, *content = self._receive()
            if verb == "begin":
                ended = self._make_batches(spec, content[0])
                with _hanging_up():
                    self._connection.send(ended)
            elif verb == "taken":  # The only other message, "stop" for a sequence that has ended already, is ignored.
                self._release(*content)

    def _receive(self) -> Any:
        """Receive and unpickle a message; raise ``_HungUp`` only if receiving, not unpickling, fails."""
        with _hanging_up():
            message = self._connection.recv_bytes()
        return _Unpickler(io.BytesIO(message)).load()

    def _make_batches(self, spec: PipelineSpec | Exception, share: SequenceShare) -> tuple[str, Any]:
        """Send the batches of a sequence, and return the message that ends the sequence."""
        if isinstance(spec, Exception):
            return "error", spec
        self._buffers.batches.max_free = KEPT_BATCHES - AHEAD + share.ahead
        spans = share.spans.of_worker(share.number)
        pipeline = SpanPipelines(spans, spec, buffers=self._buffers, counter=self._counter)
        under_way: deque[int] = deque()  # bytes of each batch that is sent and not yet taken
        try:
            pipeline.start()
            if not gc.isenabled():  # Garbage collection is off until the first sequence.
                gc.freeze()
                gc.enable()
            while (batch := pipeline.receive()) is not None:
                while _is_full(under_way, share) or self._connection.poll():
                    message = self._receive()
                    if message[0] == "stop":
                        return "end", None
                    self._release(*message[1:])
                    under_way.popleft()
                under_way.append(self._send(batch))
        except (PicstoreError, OSError) as error:
            return "error", error
        finally:
            pipeline.close()
        return "end", None

    def _release(self, freed: list[int], parted: list[int]) -> None:
        """Let new batches use the blocks of ``freed`` batches; drop blocks of ``parted`` batches, which were copied."""
        for number in (*freed, *parted):
            if (sent := self._sent.pop(number, None)) is not None:
                batch, address = sent
                if number in parted:
                    self._buffers.batches.retire(address)
                batch.release()

    def _send(self, batch: HostBatch) -> int:
        """Send a batch, and return the size of its block in bytes."""
        arrays, others = batch.take_apart()
        first: Any = arrays
        while isinstance(first, list):
            first = first[0]
        block = self._blocks.find(first.ctypes.data)
        message = Message(
            number=self._next_number,
            block=block.number,
            new_size=None if block.descriptor is None else block.size,
            gone=self._blocks.take_gone(),
            arrays=map_images(partial(share_array, block.start), arrays),
            batch=others,
            stats=self._counter.stats,
        )
        self._sent[self._next_number] = batch, block.start
        self._next_number += 1
        with _hanging_up():
            self._connection.send(("batch", message))
            if block.descriptor is not None:
                send_descriptor(self._connection, block.descriptor)
        block.close()
        return block.size


def _is_full(under_way: Sequence[int], share: SequenceShare) -> bool:
    """Return whether no further batch may be sent, given the size in bytes of each batch sent and not yet taken."""
    return len(under_way) >= AHEAD and (len(under_way) >= share.ahead or sum(under_way) >= share.room)


def _exit_after_parent(parent: int) -> None:
    """End this process ``_LAST_SECONDS`` after its parent has died.

    Usually the closed socket ends the process earlier. The parent's process id is polled, because poll() on macOS may
    not report that the socket was closed.
    """
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    time.sleep(_LAST_SECONDS)
    os._exit(1)


def main() -> None:
    """Serve the socket whose descriptor is the first argument of the program; the second is the parent's process id."""
    threading.Thread(target=_exit_after_parent, args=(int(sys.argv[2]),), daemon=True).start()
    with contextlib.suppress(_HungUp):
        ProcessServer(Connection(int(sys.argv[1]))).serve()


class SpanPipelines:
    """Maker of the batches of spans (ranges of batches), with one pipeline for each span.

    A pipeline starts once the previous one has requested its last containers, because a span's first batch waits for a
    container of each lane (part of the epoch). Meanwhile each of the two holds containers within the budget of memory.
    """

    def __init__(
        self, spans: Iterator[Span], spec: PipelineSpec, *, buffers: BufferPools, counter: StatsCounter
    ) -> None:
        self._spans, self._spec, self._buffers, self._counter = spans, spec, buffers, counter
        self._current = self._make_next()
        self._next: Pipeline | None = None

    def start(self) -> None:
        if self._current is not None:
            self._current.start()

    def receive(self) -> HostBatch | None:
        """Return the next batch, or None at the end; raise the errors of :meth:`Pipeline.receive`."""
        while self._current is not None:
            if self._next is None and self._current.drained:
                self._next = self._make_next()
                if self._next is not None:
                    self._next.start()
            batch = self._current.receive()
            if batch is not None:
                return batch
            self._current.close()
            self._current, self._next = self._next or self._make_next(), None
        return None

    def close(self) -> None:
        for each in (self._current, self._next):
            if each is not None:
                each.close()

    def _make_next(self) -> Pipeline | None:
        span = next(self._spans, None)
        if span is None:
            return None
        return Pipeline(span(self._spec.sources), self._spec, buffers=self._buffers, counter=self._counter)
