"""A pipeline in a process of its own, so that its threads and the training loop do not share an interpreter.

The child runs only ``main`` of ``loader_process_main.py``, so the user's main module is not imported again and needs no
guard. Batches lie in blocks of anonymous shared memory, whose descriptors travel over a socket: no name can collide
between two runs, and nothing is left over when either process is killed. Once a block is mapped, neither process keeps
its descriptor, so that batches that a user keeps cost only memory. The child follows the parent's messages and ends
when the socket closes.

    parent                         child
    ("begin", share)    ────────→  starts a pipeline for each of its spans, before the previous span's last batches
                        ←────────  Message, then the descriptor of its block, if the block is new (``send_descriptor``)
    ("taken", freed,    ────────→  goes on; ``share`` limits the batches on their way. The memory of freed batches is
              parted)              filled again; the memory of parted batches is dropped
                        ←────────  ("end" | "error", …)
    ("stop",)           ────────→  closes the pipelines, answers "end"

With several processes (``process_sequence.py``) the parent receives messages before their batch's turn, and sends
"taken" in that turn: until then the batch counts as on its way.

A fork of the parent inherits the parent's mappings. Before a fork, the memory of batches in use becomes private to
the parent, and so to the fork; these batches are parted from their blocks. Private mappings from the start would cost
1 ms for each batch of 19 MB, and would still show data that the child writes later.

An unexpected error ends the child. The traceback, or the stacks of a crash, go to a file without a name that both
processes hold, so that the parent's error has them as its cause, whatever state the socket is in.
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

AHEAD = 2  # Number of batches, of any size, that the child may send before the consumer takes the first of them.
_MAIN = "picstore.train.pipeline.loader_process_main:main"
# By default, BLAS starts a thread for each core (45 ms on two cores), but the child multiplies only small matrices.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
EXIT_TIMEOUT = 5  # Seconds that the child has to end a sequence or to exit, before it is killed.
_MAX_LAST_WORDS = 1 << 16  # maximum number of bytes to read from a dead child's traceback


@dataclass(frozen=True, slots=True)
class Message:
    """Message from a loader process (the child) about a batch whose arrays lie in a block of shared memory.

    Attributes:
        number, block: serial numbers of the batch and of its block, counted from the child's start.
        new_size: bytes of a new block, which the parent must map and whose descriptor follows; None for other blocks.
        gone: serial numbers of blocks that the child has freed since the previous message.
        arrays: result of ``HostBatch.take_apart``, with a ``SharedArray`` in place of each array.
    """

    number: int
    block: int
    new_size: int | None
    gone: list[int]
    arrays: Any
    batch: HostBatch
    stats: Stats


@dataclass(frozen=True, slots=True)
class SequenceShare:
    """The part of a sequence of batches that one loader process makes.

    Attributes:
        spans: all spans (ranges of batches) of the sequence, dealt to the processes in turn.
        ahead: maximum number of batches that were sent but not taken by the consumer.
        room: total bytes of such batches at which the process stops sending, if they are at least AHEAD batches.
    """

    spans: DealtSpans
    number: int = 0
    ahead: int = AHEAD
    room: int = 0


class _ChildError(Exception):
    """Error with the child's traceback as its message; the cause of the error that the parent raises."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class LoaderProcess:
    """A process that makes batches, one sequence at a time, and lives as long as this object.

    Attributes:
        connection: the parent's end of the socket, readable when a message has come.
        running: whether a sequence has begun and is not over.
    """

    def __init__(self, spec: PipelineSpec, counter: StatsCounter) -> None:
        self._counter = counter
        self._stats = Stats()  # the child's statistics at its last message, already added to ``counter``
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
                start_new_session=True,  # A keyboard interrupt goes only to the parent.
            )
        self._finalizer = weakref.finalize(self, _end_process, self.connection, self._process, self._pid)
        self._finalizer.atexit = False
        close_at_exit(self)
        _connections.add(self.connection)
        self._blocks = _MappedBlocks()
        self._between_messages = False
        self.running = self._failed = False
        self._sequences = 0  # Number of sequences begun, which is also the serial number of the latest sequence.
        self._send(spec)

    @property
    def alive(self) -> bool:
        """Whether this process may use the child: the child still runs, and this process, not a parent, started it."""
        return self._finalizer.alive and self._process.poll() is None and self._pid == os.getpid()

    def start_sequence(self, share: SequenceShare) -> int:
        """Make the child begin a sequence of batches; return its serial number, the argument of ``end_sequence``."""
        self.running, self._between_messages = True, False
        self._sequences += 1
        self._send(("begin", share))
        self._between_messages = True
        return self._sequences

    def receive(self) -> HostBatch | None:
        """Return the next batch, or None at the end; call ``take`` when the consumer takes the batch.

        Raises:
            PicstoreError: the child's pipeline raised an error, or the child has ended.
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
        """Tell the child that the consumer has taken a batch; do nothing if the child has failed in the meantime."""
        if not self._failed:
            self._between_messages = False
            with contextlib.suppress(ConnectionError):
                self.connection.send(("taken", *self._blocks.take_freed()))
            self._between_messages = True

    def end_sequence(self, number: int) -> None:
        """End a sequence, dropping the batches that still come, so that another sequence can begin.

        Do nothing if a later sequence has begun, because garbage collection may close an old iterator late.
        """
        if number != self._sequences or not self.running or not self.alive:
            return
        if not self._between_messages:  # An interrupt may have left half a message in the socket.
            self.close()
            return
        try:
            self._send(("stop",))
            while self.connection.poll(EXIT_TIMEOUT):
                if (message := self._receive()) is None:
                    return
                self._blocks.find(message, self._receive_descriptor)
                self._blocks.free(message.number)
            # The child did not answer in time; it may be waiting for an object store.
            self.close()
        except (PicstoreError, OSError, CancelledError):
            # The child has sent an error or has ended. The next iteration will notice.
            self.running = False
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process, from any thread; do nothing in a fork, because the parent still uses the process."""
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
            # End the child: the next iteration starts a new child, which may be able to open a dataset that failed.
            self.close()
            raise content
        return None

    def _receive_descriptor(self) -> int:
        try:
            return receive_descriptor(self.connection)
        except (EOFError, OSError) as error:
            self._raise_death(error)

    def _raise_death(self, error: Exception) -> NoReturn:
        self.running = False
        if not self._finalizer.alive or self._pid != os.getpid():
            raise CancelledError from error
        self._failed = True
        if not has_hung_up(error):  # An error of this process, such as too many open files.
            self.close()
            raise error
        try:
            code = self._process.wait(EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:  # The child has closed its socket but does not end.
            self._process.kill()
            code = self._process.wait()
        text = os.pread(self._last_words, _MAX_LAST_WORDS, 0).decode(errors="replace").strip()
        ended = f"the loader's process has ended with exit status {code}"
        if not text:
            raise PicstoreError(f"{ended}, killed from outside: for want of memory, for instance") from error
        lines = text.splitlines()
        raise PicstoreError(f"{ended}: {lines[-1 if code > 0 else 0]}") from _ChildError(text)

    def _map_batch(self, message: Message) -> HostBatch:
        memory = self._blocks.use(message, self._receive_descriptor)
        arrays = map_images(partial(map_array, memory), message.arrays)
        self._counter.add(**asdict(message.stats - self._stats))
        self._stats = message.stats
        return message.batch.put_together(arrays)


class _MappedBlocks:
    """Blocks of the child's memory mapped in this process; they stay mapped, because mapping 19 MB anew takes 1 ms."""

    def __init__(self) -> None:
        self._mapped: dict[int, Mapping] = {}  # Key: serial number of the block.
        self._used: dict[int, int] = {}  # Serial number of a batch in use: serial number of its block.
        self._freed: list[int] = []  # Serial numbers of batches of which no array is left.
        self._parted: set[int] = set()  # Serial numbers of batches whose memory ``part`` has made private.
        _mapped_blocks.add(self)

    def find(self, message: Message, receive_descriptor: Callable[[], int]) -> Mapping:
        """Return the mapping of a message's block; forget the blocks that the child freed before the message."""
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
        """Return the memory of a batch's block; the batch is freed when the last array in that memory is deleted."""
        # Make a new array, to which all arrays of the batch refer, so that it is deleted only after all of them.
        memory: U8 = np.asarray(self.find(message, receive_descriptor))
        self._used[message.number] = message.block
        weakref.finalize(memory, self.free, message.number).atexit = False
        return memory

    def free(self, number: int) -> None:
        """Note that no array of a batch is left, so that the child may fill the batch's block again."""
        self._used.pop(number, None)
        self._freed.append(number)

    def take_freed(self) -> tuple[list[int], list[int]]:
        """Return, and forget, the serial numbers of batches of which no array is left, in two lists.

        The child may reuse the blocks of the first list's batches. It must free the blocks of the second list's
        batches, which ``part`` has copied.
        """
        freed = {self._freed.pop() for _ in range(len(self._freed))}
        parted = freed & self._parted
        self._parted -= parted
        return list(freed - parted), list(parted)

    def part(self) -> None:
        """Before a fork, replace the shared memory of batches in use by copies that the loader process cannot change.

        Page-locked memory stays shared, because none of the user's arrays lies in it.
        """
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
    """Close a fork's copies of the sockets: a loader process ends only when all copies of the socket are closed."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(before=_part_from_fork, after_in_child=_close_in_fork)


def _end_process(connection: Connection, process: subprocess.Popen[bytes], parent: int) -> None:
    """Close the child's socket, which ends the child, and wait for its end.

    The descriptor stays open until the connection is deleted, because another thread may still read from it.
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
