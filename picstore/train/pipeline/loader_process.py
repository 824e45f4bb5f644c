"""A pipeline in a process of its own, so that its threads and the training loop do not share an interpreter.

The child runs only ``main`` of ``loader_process_main.py``, so the user's main module is not imported again and needs no
guard. Batches lie in blocks of anonymous shared memory, whose descriptors travel over a socket: no name can collide
between two runs, and nothing is left over when either process is killed. Once a block is mapped, neither process keeps
its descriptor, so that batches that a user keeps cost only memory. The child follows the parent's messages and ends
when the socket closes.

    parent                         child
    ("begin", sequence) ────────→  starts a pipeline for each of its spans, ahead of the last batches of the one before
                        ←────────  Message, then the descriptor of its block, if that is new (``send_descriptor``)
    ("taken", freed,    ────────→  goes on; the sequence says how many batches are on their way at most. Memory of
              parted)              freed batches is filled again, of parted ones it is let go
                        ←────────  ("end" | "error", …)
    ("stop",)           ────────→  closes the pipelines, answers "end"

With several processes (``process_sequence.py``) the parent receives messages before their batch's turn, and sends
"taken" in that turn: until then the batch is on its way.

A fork of the parent inherits what the parent has mapped. Before a fork, the memory of batches in use becomes private to
the parent, and so to the fork; these batches are parted from their blocks. Private mappings from the start would cost
1 ms for each batch of 19 MB, and would still show what the child writes later.

An error that the child does not expect ends it. Its traceback, or the stacks at a crash, goes to a file without a name,
which both processes hold: whatever state the socket is in, the parent's error has it as its cause.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import numpy as np

from picstore.arrays import U8
from picstore.errors import PicstoreError
from picstore.helper_process import NUMBA_EXTRAS, start_helper
from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import (
    Mapping,
    anonymous_memory,
    has_hung_up,
    make_private,
    map_array,
    map_memory,
    receive_descriptor,
    socket_of,
)
from picstore.train.order.spans import DealtSpans
from picstore.train.pipeline.own_threads import close_at_exit
from picstore.train.pipeline.stats import Stats, StatsCounter

AHEAD = 2  # batches on their way at least, beside the pipeline's finished ones
_MAIN = "picstore.train.pipeline.loader_process_main:main"
# numpy's BLAS would start a thread a core, 45 ms of CPU on two cores; the child multiplies small matrices only.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
EXIT_TIMEOUT = 5  # seconds that the child has to end a sequence or itself, before it is killed
_MAX_LAST_WORDS = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class Message:
    """A batch without the arrays that lie in its block of memory.

    Attributes:
        number: counts batches.
        block: number of the block of memory.
        new_size: bytes of a block that the parent does not have yet; its descriptor follows.
        gone: blocks that the child has let go.
    """

    number: int
    block: int
    new_size: int | None
    gone: list[int]
    arrays: Any  # of ``HostBatch.take_apart``, with a ``shared_arrays.SharedArray`` for each
    batch: HostBatch
    stats: Stats


@dataclass(frozen=True, slots=True)
class SequenceShare:
    """The part of a sequence of batches that one loader process makes.

    Attributes:
        spans: of the whole sequence.
        number: of the process.
        ahead: batches on their way at most.
        room: bytes of them, at which fewer are on their way, but AHEAD in any case.
    """

    spans: DealtSpans
    number: int = 0
    ahead: int = AHEAD
    room: int = 0


class _ChildError(Exception):
    """The child's traceback as text, the cause of the parent's error."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class LoaderProcess:
    """A process that makes batches, which lives as long as this object; it makes one sequence of them at a time.

    Attributes:
        connection: readable when a message has come.
        running: whether a sequence has begun and is not over.
    """

    def __init__(self, spec: PipelineSpec, counter: StatsCounter) -> None:
        self._counter = counter
        self._stats = Stats()  # the child's, as far as they are in ``counter``
        self._pid = os.getpid()
        self.connection, theirs = Pipe()
        self._last_words = anonymous_memory(0)
        weakref.finalize(self, os.close, self._last_words).atexit = False
        with theirs:
            self._process = start_helper(
                _MAIN,
                theirs.fileno(),
                self._pid,
                descriptors=[theirs.fileno()],
                last_words=self._last_words,
                without=NUMBA_EXTRAS,
                environment=_ENVIRONMENT,
                start_new_session=True,  # an interrupt from the keyboard goes to the parent alone
            )
        self._finalizer = weakref.finalize(self, _end_process, self.connection, self._process, self._pid)
        self._finalizer.atexit = False
        close_at_exit(self)
        _connections.add(self.connection)
        self._blocks = _MappedBlocks()
        self._between_messages = False
        self.running = self._failed = False
        self._sequences = 0  # that have begun
        self._send(spec)

    @property
    def alive(self) -> bool:
        """Whether this process may still use the child."""
        return self._finalizer.alive and self._process.poll() is None and self._pid == os.getpid()

    def start_sequence(self, share: SequenceShare) -> int:
        """Have a sequence of batches made; returns its number."""
        self.running, self._between_messages = True, False
        self._sequences += 1
        self._send(("begin", share))
        self._between_messages = True
        return self._sequences

    def receive(self) -> HostBatch | None:
        """The next batch, or None at the end; ``take`` is to follow in the batch's turn.

        Raises:
            PicstoreError: an error of the child's pipeline, or the child has ended.
            CancelledError: this object was closed, by another thread for instance, or its process was forked.
        """
        self._between_messages = False
        message = self._receive()
        if message is None:
            return None
        batch = self._map_batch(message)
        self._between_messages = True
        return batch

    def take(self) -> None:
        """Tell the child that a batch is not on its way any more.

        Where there is no child to tell, earlier batches still have their turn, and then ``receive`` raises.
        """
        if not self._failed:
            self._between_messages = False
            with contextlib.suppress(ConnectionError):
                self.connection.send(("taken", *self._blocks.take_freed()))
            self._between_messages = True

    def end_sequence(self, number: int) -> None:
        """Make the child ready for another sequence; the batches that it still sends are dropped.

        Nothing happens once another has begun: a garbage collection may close an iterator much later than it ended.
        """
        if number != self._sequences or not self.running or not self.alive:
            return
        if not self._between_messages:  # an interrupt, which may have left half a message in the socket
            self.close()
            return
        try:
            self._send(("stop",))
            while self.connection.poll(EXIT_TIMEOUT):
                if (message := self._receive()) is None:
                    return
                self._blocks.find(message, self._receive_descriptor)
                self._blocks.free(message.number)
            self.close()  # it waits for a store that does not answer
        except (PicstoreError, OSError, CancelledError):
            self.running = False  # an error of a dropped batch, or the child's death, which the next iteration meets
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process; from any thread, and not in a fork, whose parent goes on with it."""
        self.running = False
        self._finalizer()

    def _send(self, message: Any) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            self._raise_death(error)

    def _receive(self) -> Message | None:
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError) as error:
            self._raise_death(error)
        if kind == "batch":
            return content  # type: ignore[no-any-return]
        self.running = False
        if kind == "error":
            self._failed = True
            self.close()  # a data set that could not be opened may be there when the next child opens it
            raise content
        return None

    def _receive_descriptor(self) -> int:
        try:
            return receive_descriptor(self.connection)
        except (EOFError, OSError) as error:
            self._raise_death(error)

    def _raise_death(self, error: Exception) -> NoReturn:
        """Raise what became of the child, after an error of its socket."""
        self.running = False
        if not self._finalizer.alive or self._pid != os.getpid():
            raise CancelledError from error
        self._failed = True
        if not has_hung_up(error):  # of this side: too many open files, for instance
            self.close()
            raise error
        try:
            code = self._process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:  # it has hung up and does not end
            self._process.kill()
            code = self._process.wait()
        text = os.pread(self._last_words, _MAX_LAST_WORDS, 0).decode(errors="replace").strip()
        ended = f"the loader's process has ended with exit status {code}"
        if not text:
            raise PicstoreError(f"{ended}, killed from outside: for want of memory, for instance") from error
        lines = text.splitlines()
        raise PicstoreError(f"{ended}: {lines[-1 if code > 0 else 0]}") from _ChildError(text)

    def _map_batch(self, message: Message) -> HostBatch:
        """Make arrays of a batch's memory."""
        memory = self._blocks.use(message, self._receive_descriptor)
        arrays = map_images(partial(map_array, memory), message.arrays)
        self._counter.add(**asdict(message.stats - self._stats))
        self._stats = message.stats
        return message.batch.put_together(arrays)


class _MappedBlocks:
    """The child's blocks of memory as the parent has mapped them: mapping one again costs 1 ms for 19 MB."""

    def __init__(self) -> None:
        self._mapped: dict[int, Mapping] = {}  # by number of the block
        self._used: dict[int, int] = {}  # the block of each batch that something here uses
        self._freed: list[int] = []  # batches whose memory nothing here uses any more
        self._parted: set[int] = set()  # batches that a fork has too, in memory of their own
        _mapped_blocks.add(self)

    def find(self, message: Message, receive_descriptor: Callable[[], int]) -> Mapping:
        """Map a message's block, if it is new, and unmap blocks that are gone; arrays keep their own alive."""
        for number in message.gone:
            self._mapped.pop(number, None)
        if message.new_size is not None:
            descriptor = receive_descriptor()
            try:
                self._mapped[message.block] = map_memory(descriptor, message.new_size)
            finally:
                os.close(descriptor)
        return self._mapped[message.block]

    def use(self, message: Message, receive_descriptor: Callable[[], int]) -> U8:
        """Make an array of the memory of a batch, which is freed with it."""
        # An array of an array would refer to that one's memory alone.
        memory: U8 = np.asarray(self.find(message, receive_descriptor))
        self._used[message.number] = message.block
        weakref.finalize(memory, self.free, message.number).atexit = False
        return memory

    def free(self, number: int) -> None:
        """Note that nothing uses the memory of a batch."""
        self._used.pop(number, None)
        self._freed.append(number)

    def take_freed(self) -> tuple[list[int], list[int]]:
        """Take the numbers of freed batches whose block may be filled again, and of freed batches that were parted."""
        freed = {self._freed.pop() for _ in range(len(self._freed))}
        parted = freed & self._parted
        self._parted -= parted
        return list(freed - parted), list(parted)

    def part(self) -> None:
        """Make the memory of batches in use private; not page-locked memory, which no user sees."""
        for number, block in list(self._used.items()):
            mapping = self._mapped.get(block)
            if number not in self._parted and mapping is not None and not mapping.locked:
                self._parted.add(number)
                del self._mapped[block]
                make_private(mapping)


_mapped_blocks: weakref.WeakSet[_MappedBlocks] = weakref.WeakSet()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _part_from_fork() -> None:
    for blocks in list(_mapped_blocks):
        blocks.part()


def _close_in_fork() -> None:
    """Close the sockets in a fork, or a child would outlive its parent by as long as the fork lives."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(before=_part_from_fork, after_in_child=_close_in_fork)


def _end_process(connection: Connection, process: subprocess.Popen[bytes], parent: int) -> None:
    """Hang up, which ends the child, and wait for it.

    The descriptor is closed by the last who refers to it: another thread may be reading from it, and closing it below
    that read could give its number to another file.
    """
    if parent != os.getpid():
        return
    with contextlib.suppress(OSError), socket_of(connection) as line:
        line.shutdown(socket.SHUT_RDWR)
    try:
        process.wait(EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
