"""A feed in a process of its own, so that its threads and the training loop do not share an interpreter.

The child runs ``main`` of ``child.py`` and nothing else, so the user's main module is not imported again and needs
no guard. Batches lie in anonymous shared memory, whose descriptors travel over a socket: there is no name that two runs
could share, and nothing is left behind when either process is killed. The parent says what the child does next; the
child ends with the socket.

    parent                         child
    ("begin", requests) ────────→  starts a pipeline
                        ←────────  Message, then the descriptor of its memory
    ("taken", freed)    ────────→  goes on; at most AHEAD batches are on their way
                        ←────────  ("end" | "error", …)
    ("stop",)           ────────→  closes the pipeline, answers "end"
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import weakref
from collections import OrderedDict
from collections.abc import Generator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

import numpy as np

from picstore.arrays import I64, U8, Array
from picstore.errors import Damage, PicstoreError
from picstore.storage.edits.columns import Values
from picstore.train.batching.spec import EncodedBatch, HostBatch, MakeRequests, PipelineSpec
from picstore.train.buffers import KEPT_BATCHES
from picstore.train.pipeline.stats import Counters, Stats

AHEAD = 2  # batches on their way, beside those that the pipeline has ready
_MAPPED = 2 * KEPT_BATCHES  # blocks that the parent keeps mapped: mapping one anew costs 1 ms for 19 MB
# Modules are found where this process finds them, and not in the working directory, which -c would add. numba would
# import SciPy and cffi, where they are installed, for what no kernel asks for: a third of the time to the first batch.
_PROGRAM = """
import sys
sys.path[:] = filter(None, sys.path)
sys.modules.update(scipy=None, cffi=None)
from picstore.train.pipeline.process_main import main
main()
"""
_PATIENCE = 5  # seconds that the child has to end in


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array in shared memory: where it begins, its shape, strides in bytes, and dtype."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Message:
    """A batch but for its pixels, which lie in block ``block`` of ``size`` bytes; ``number`` counts batches."""

    number: int
    block: int
    size: int
    images: SharedArray | list[SharedArray]
    labels: I64
    ids: I64
    targets: list[dict[str, Any]] | None
    lost: list[Damage]
    undecoded: EncodedBatch | None
    columns: dict[str, Values]
    stats: Stats


class LoaderProcess:
    """A feed in a process of its own, which lives as long as this object; it runs one sequence of batches at a time."""

    def __init__(self, feed: PipelineSpec, counters: Counters) -> None:
        self._counters = counters
        self._stats = Stats()  # the child's, as far as they are in ``counters``
        self._pid = os.getpid()
        self._connection, theirs = Pipe()
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            # A session of its own: an interrupt from the keyboard is the parent's to deal with.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        self._finalizer = weakref.finalize(self, _end, self._connection, self._process)
        self._mapped: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._freed: list[int] = []  # batches whose memory nobody here uses any more
        self.running = False
        self._send(feed)

    def run(self, requests: MakeRequests) -> Generator[HostBatch]:
        """As :func:`picstore.train.pipeline.pipeline.make_batches`, in the child.

        Raises:
            PicstoreError: the child has ended, killed for want of memory perhaps.
        """
        if self.running:
            raise PicstoreError("the child is at work on another sequence of batches")
        self.running, between = True, False
        try:
            self._send(("begin", requests))
            while (message := self._receive()) is not None:
                ready = self._take(message)
                self._send(("taken", self._collect_freed()))
                between = True
                yield ready
                between = False
                del ready  # its memory may be free before the next is asked for
        finally:
            if between:
                self._stop()
            elif self.running:  # an interrupt, which may have left half a message in the socket
                self.close()

    def close(self) -> None:
        """End the process."""
        self.running = False
        self._finalizer()

    @property
    def alive(self) -> bool:
        """Whether this process may still use the child."""
        return self._finalizer.alive and self._process.poll() is None and self._pid == os.getpid()

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._death() from error

    def _receive(self) -> Message | None:
        try:
            kind, content = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise self._death() from error
        if kind == "batch":
            return content  # type: ignore[no-any-return]
        self.running = False
        if kind == "error":
            self.close()  # a data set that could not be opened may be there when the next child asks
            raise content
        return None

    def _death(self) -> PicstoreError:
        self.running = False
        code = self._process.wait()
        return PicstoreError(f"the loader's process has ended with exit status {code}; isolate=False shows its errors")

    def _take(self, message: Message) -> HostBatch:
        """Map a batch's memory and make arrays of it."""
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
        images = [_array(lent, p) for p in pictures] if isinstance(pictures, list) else _array(lent, pictures)
        self._counters.add(**asdict(message.stats - self._stats))
        self._stats = message.stats
        return HostBatch(
            images=images,
            labels=message.labels,
            ids=message.ids,
            targets=message.targets,
            lost=message.lost,
            undecoded=message.undecoded,
            columns=message.columns,
        )

    def _collect_freed(self) -> list[int]:
        return [self._freed.pop() for _ in range(len(self._freed))]

    def _stop(self) -> None:
        """Make the child ready for another sequence; whatever it still sends is thrown away."""
        if not self.running or not self.alive:
            return
        try:
            self._send(("stop",))
            while (message := self._receive()) is not None:
                os.close(recv_handle(self._connection))
                self._freed.append(message.number)
        except (PicstoreError, OSError):
            self.running = False  # of batches that nobody wants, or its death, which the next iteration sees
        except BaseException:
            self.close()
            raise


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()  # which is what the child ends by, once it has a batch to send
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _array(memory: U8, picture: SharedArray) -> Array:
    array: Array = np.ndarray(picture.shape, np.dtype(picture.dtype), memory.data, picture.offset, picture.strides)
    return array
