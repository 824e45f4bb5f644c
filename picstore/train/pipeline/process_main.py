"""The child's side of ``isolate.py``: it makes batches and hands them over. It imports no torch, which would cost a
second and 400 MB.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import weakref
from collections import OrderedDict
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import U8, Array
from picstore.errors import PicstoreError
from picstore.train.batching.spec import HostBatch, MakeRequests, PipelineSpec
from picstore.train.buffers import KEPT_BATCHES, Blocks, Memory
from picstore.train.pipeline.pipeline import make_batches
from picstore.train.pipeline.process import AHEAD, Message, SharedArray
from picstore.train.pipeline.stats import Counters

Address: TypeAlias = int


class _Shared:
    """The child's blocks of shared memory."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Address, tuple[int, int, int]] = OrderedDict()  # number, size, descriptor
        self._next = 0

    def allocate(self, size: int) -> U8:
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


def _picture(image: Array, start: Address) -> SharedArray:
    return SharedArray(image.ctypes.data - start, image.shape, image.strides, image.dtype.str)


class ProcessServer:
    """The child's side of the socket."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shared = _Shared()
        self._memory = Memory(batches=Blocks(keep=KEPT_BATCHES, allocate=self._shared.allocate))
        self._counters = Counters()
        self._lent: dict[int, HostBatch] = {}  # batches that the parent may be using
        self._sent = 0

    def serve(self) -> None:
        """Do what the parent says until it hangs up."""
        feed: PipelineSpec | Exception
        try:
            feed = self._connection.recv()
        except (PicstoreError, OSError) as error:  # its data sets cannot be opened
            feed = error
        while True:
            verb, *content = self._connection.recv()
            if verb == "begin":
                self._connection.send(self._run(feed, content[0]))
            elif verb == "taken":  # after the last batch; a stop that comes too late needs no answer
                self._forget(content[0])

    def _run(self, feed: PipelineSpec | Exception, requests: MakeRequests) -> tuple[str, Any]:
        if isinstance(feed, Exception):
            return "error", feed
        under_way = 0
        try:
            for ready in make_batches(feed, requests, memory=self._memory, counters=self._counters):
                while under_way >= AHEAD or self._connection.poll():
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

    def _send(self, ready: HostBatch) -> None:
        listed = isinstance(ready.images, list)
        images: list[Array] = list(ready.images) if listed else [ready.images]  # type: ignore[list-item]
        start, block, size, descriptor = self._shared.find(images[0].ctypes.data)
        pictures = [_picture(image, start) for image in images]
        message = Message(
            number=self._sent,
            block=block,
            size=size,
            images=pictures if listed else pictures[0],
            labels=ready.labels,
            ids=ready.ids,
            targets=ready.targets,
            lost=ready.lost,
            undecoded=ready.undecoded,
            columns=ready.columns,
            stats=self._counters.stats,
        )
        self._lent[self._sent] = ready
        self._sent += 1
        self._connection.send(("batch", message))
        send_handle(self._connection, descriptor, None)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has hung up
        ProcessServer(Connection(int(sys.argv[1]))).serve()
