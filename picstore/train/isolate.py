"""A feed in a process of its own, so that its threads and the training loop do not share an interpreter.

The child runs :func:`main` of this module and nothing else, so the user's main module is not imported again and needs
no guard. Batches lie in anonymous shared memory, whose descriptors travel over a socket: there is no name that two runs
could share, and nothing is left behind when either process is killed. The parent says what the child does next; the
child ends with the socket.

    parent                         child
    ("begin", requests) ────────→  starts a pipeline
                        ←────────  Message, then the descriptor of its memory
    ("taken", freed)    ────────→  goes on; at most _AHEAD batches are on their way
                        ←────────  ("end" | "error", …)
    ("stop",)           ────────→  closes the pipeline, answers "end"
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, TypeAlias

import numpy as np
import torch

from picstore.errors import Damage, PicstoreError
from picstore.train.feed import Feed, MakeRequests, Ready, run
from picstore.train.memory import KEPT_BATCHES, Blocks, Bytes, Memory
from picstore.train.stats import Counters, Stats

_AHEAD = 2  # batches on their way, beside those that the pipeline has ready
_MAPPED = 2 * KEPT_BATCHES  # blocks that the parent keeps mapped: mapping one anew costs 1 ms for 19 MB
_PATIENCE = 5  # seconds that the child has to end in

Address: TypeAlias = int


@dataclass(frozen=True, slots=True)
class _Picture:
    """A tensor in shared memory: where it begins, its shape, strides in elements, and dtype."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Message:
    """A batch but for its pixels, which lie in block ``block`` of ``size`` bytes; ``number`` counts batches."""

    number: int
    block: int
    size: int
    images: _Picture | list[_Picture]
    labels: list[int]
    ids: list[int]
    targets: list[dict[str, Any]] | None
    lost: list[Damage]
    stats: Stats


class _Shared:
    """The child's blocks of shared memory."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Address, tuple[int, int, int]] = OrderedDict()  # number, size, descriptor
        self._next = 0

    def allocate(self, size: int) -> Bytes:
        descriptor = _anonymous(size)
        block = np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint8)
        address = block.ctypes.data
        self._blocks[address] = (self._next, size, descriptor)
        weakref.finalize(block, self._drop, address).atexit = False
        self._next += 1
        return block

    def _drop(self, address: Address) -> None:
        os.close(self._blocks.pop(address)[2])

    def find(self, address: Address) -> tuple[Address, int, int, int]:
        """Address, number, size and descriptor of the block that holds an address."""
        for start, (number, size, descriptor) in self._blocks.items():
            if start <= address < start + size:
                return start, number, size, descriptor
        raise PicstoreError(f"no shared memory holds the address {address}")


def _anonymous(size: int) -> int:
    """The descriptor of ``size`` bytes of memory without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("picstore")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Child:
    """A feed in a process of its own, which lives as long as this object; it runs one sequence of batches at a time."""

    def __init__(self, feed: Feed, counters: Counters) -> None:
        self._counters = counters
        self._stats = Stats()  # the child's, as far as they are in ``counters``
        self._pid = os.getpid()
        self._connection, theirs = Pipe()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            # A session of its own: an interrupt from the keyboard is the parent's to deal with.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-c", f"from {__name__} import main; main()", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection.send(feed)
        self._mapped: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._freed: list[int] = []  # batches whose memory nobody here uses any more
        self._running = False
        self._finalizer = weakref.finalize(self, _end, self._connection, self._process)

    def run(self, requests: MakeRequests) -> Generator[Ready]:
        """As :func:`picstore.train.feed.run`, in the child.

        Raises:
            PicstoreError: the child has ended, killed for want of memory perhaps.
        """
        if self._running:
            raise PicstoreError("a loader with isolate=True can be iterated only once at a time")
        self._running = True
        try:
            self._send(("begin", requests))
            while (message := self._receive()) is not None:
                ready = self._take(message)
                self._send(("taken", self._collect_freed()))
                yield ready
                del ready  # its memory may be free before the next is asked for
        finally:
            self._stop()

    def close(self) -> None:
        """End the process."""
        self._finalizer()

    @property
    def alive(self) -> bool:
        """Whether this process may still use the child."""
        return self._finalizer.alive and self._process.poll() is None and self._pid == os.getpid()

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._death() from error

    def _receive(self) -> _Message | None:
        try:
            kind, content = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._death() from error
        if kind == "batch":
            return content  # type: ignore[no-any-return]
        self._running = False
        if kind == "error":
            raise content
        return None

    def _death(self) -> PicstoreError:
        self._running = False
        code = self._process.wait()
        return PicstoreError(f"the loader's process has ended with exit status {code}; isolate=False shows its errors")

    def _take(self, message: _Message) -> Ready:
        """Map a batch's memory and make tensors of it."""
        descriptor = recv_handle(self._connection)
        try:
            block = self._mapped.pop(message.block, None) or mmap.mmap(descriptor, message.size)
        finally:
            os.close(descriptor)
        self._mapped[message.block] = block
        while len(self._mapped) > _MAPPED:
            self._mapped.popitem(last=False)
        lent = np.frombuffer(block, dtype=np.uint8)
        weakref.finalize(lent, self._freed.append, message.number).atexit = False
        pictures = message.images
        images = [_tensor(lent, p) for p in pictures] if isinstance(pictures, list) else _tensor(lent, pictures)
        labels, ids = torch.tensor(message.labels, dtype=torch.int64), torch.tensor(message.ids, dtype=torch.int64)
        self._counters.add(**asdict(message.stats - self._stats))
        self._stats = message.stats
        return Ready(images, labels, ids, message.targets, message.lost)

    def _collect_freed(self) -> list[int]:
        return [self._freed.pop() for _ in range(len(self._freed))]

    def _stop(self) -> None:
        """Make the child ready for another sequence; whatever it still sends is thrown away."""
        if not self._running or not self.alive:
            return
        self._send(("stop",))
        while (message := self._receive()) is not None:
            os.close(recv_handle(self._connection))
            self._freed.append(message.number)
        self._running = False


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()  # which is what the child ends by, once it has a batch to send
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tensor(memory: Bytes, picture: _Picture) -> torch.Tensor:
    elements = sum((n - 1) * s for n, s in zip(picture.shape, picture.stride, strict=True)) + 1
    end = picture.offset + elements * picture.dtype.itemsize
    flat = torch.frombuffer(memory[picture.offset : end].data, dtype=picture.dtype)
    return flat.as_strided(picture.shape, picture.stride)


# The child.


def _picture(image: torch.Tensor, start: Address) -> _Picture:
    return _Picture(image.data_ptr() - start, tuple(image.shape), tuple(image.stride()), image.dtype)


class _Server:
    """The child's side of the socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shared = _Shared()
        self._memory = Memory(batches=Blocks(keep=KEPT_BATCHES, allocate=self._shared.allocate))
        self._counters = Counters()
        self._lent: dict[int, Ready] = {}  # batches that the parent may be using
        self._sent = 0

    def serve(self) -> None:
        """Do what the parent says until it hangs up."""
        feed = self._connection.recv()
        while True:
            verb, *content = self._connection.recv()
            if verb == "begin":
                self._connection.send(self._run(feed, content[0]))
            elif verb == "taken":  # after the last batch; a stop that comes too late needs no answer
                self._forget(content[0])

    def _run(self, feed: Feed, requests: MakeRequests) -> tuple[str, Any]:
        under_way = 0
        try:
            for ready in run(feed, requests, memory=self._memory, counters=self._counters):
                while under_way >= _AHEAD or self._connection.poll():
                    message = self._connection.recv()
                    if message[0] == "stop":
                        return "end", None
                    self._forget(message[1])
                    under_way -= 1
                self._send(ready)
                under_way += 1
                del ready  # or this frame would hold it until the next
        except (PicstoreError, OSError) as error:
            return "error", error
        return "end", None

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            self._lent.pop(number, None)

    def _send(self, ready: Ready) -> None:
        listed = isinstance(ready.images, list)
        images: list[torch.Tensor] = list(ready.images) if listed else [ready.images]  # type: ignore[list-item]
        start, block, size, descriptor = self._shared.find(images[0].data_ptr())
        pictures = [_picture(image, start) for image in images]
        message = _Message(
            number=self._sent,
            block=block,
            size=size,
            images=pictures if listed else pictures[0],
            labels=ready.labels.tolist(),
            ids=ready.ids.tolist(),
            targets=ready.targets,
            lost=ready.lost,
            stats=self._counters.stats,
        )
        self._lent[self._sent] = ready
        self._sent += 1
        self._connection.send(("batch", message))
        send_handle(self._connection, descriptor, None)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has hung up
        _Server(Connection(int(sys.argv[1]))).serve()
