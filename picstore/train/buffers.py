"""Memory that is used again: pools for containers and batches, and one working buffer a thread."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import tempfile
import threading
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from picstore.arrays import U8, Array

_GRANULE = 1 << 16  # bytes; containers differ by a few images, so that most blocks fit most of them
_MIN_BYTES = 1 << 20  # of a thread's buffer
# Free blocks of memory that are kept: for the batches ahead, two that the consumer has, and what a GPU takes at once.
KEPT_BATCHES = 9


def allocate_private(size: int) -> U8:
    """Memory of this process, uint8 (size,)."""
    return np.empty(size, dtype=np.uint8)


def anonymous_memory(size: int) -> int:
    """The descriptor of ``size`` bytes of memory without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("picstore")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Mapping:
    """Mapped memory; ``np.asarray`` makes uint8 arrays of it, each of which keeps it by itself.

    Attributes:
        locked: whether CUDA has page-locked it.
    """

    locked = False

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if hasattr(libc, "mremap"):
        libc.mremap.restype = ctypes.c_void_p
        libc.mremap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 2, ctypes.c_int, ctypes.c_void_p]
    return libc


_FAILED = ctypes.c_void_p(-1).value  # what mmap and mremap return then
_MAYMOVE, _FIXED = 1, 2  # of mremap
_MAP_FIXED = 0x10


def map_memory(descriptor: int, size: int) -> Mapping:
    """Map shared memory until the last array of it goes; it needs no descriptor then.

    ``mmap.mmap`` holds a descriptor of its own, before Python 3.13 in any case: 500 batches that a user keeps were as
    many as a process may have.

    Raises:
        OSError: the system has no more memory or mappings (65,530 on Linux).
    """
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, _FAILED):
        code = ctypes.get_errno()
        text = f"{os.strerror(code)}: a batch of {size:,} bytes cannot be mapped; keep fewer batches, or copies of them"
        raise OSError(code, text)
    mapping = Mapping(address, size)
    weakref.finalize(mapping, libc.munmap, address, size).atexit = False
    return mapping


def make_private(mapping: Mapping) -> None:
    """Put memory of this process alone, of the same content, in the place of shared memory.

    Arrays stay where they are. mremap moves the pages at once, so that other threads read one or the other. What
    another thread writes meanwhile may be lost.

    Raises:
        OSError: the system has no more memory.
    """
    libc, access = _libc(), mmap.PROT_READ | mmap.PROT_WRITE
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = libc.mmap(None, mapping.size, access, private, -1, 0)
    if copy not in (None, _FAILED):
        ctypes.memmove(copy, mapping.address, mapping.size)
        if hasattr(libc, "mremap"):
            copy = libc.mremap(copy, mapping.size, mapping.size, _MAYMOVE | _FIXED, mapping.address)
        else:
            libc.mmap(mapping.address, mapping.size, access, private | _MAP_FIXED, -1, 0)
            ctypes.memmove(mapping.address, copy, mapping.size)
            libc.munmap(copy, mapping.size)
    if copy in (None, _FAILED):
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: a batch of {mapping.size:,} bytes stays shared with a fork")


def allocate_mapped(size: int) -> U8:
    """Memory in a :class:`Mapping` of its own, which processes that are forked share, uint8 (size,)."""
    descriptor = anonymous_memory(size)
    try:
        return np.asarray(map_memory(descriptor, size))
    finally:
        os.close(descriptor)


def round_coarsely(size: int) -> int:
    """Round a size up, by a quarter at most, so that blocks of a few sizes fit batches of any.

    CUDA page-locks each new block. Of 280 batches of 26 to 38 MB 35 had a new block, and 17 so rounded.
    """
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step


def find_mapping(array: Array) -> Mapping | None:
    """Find the mapped memory that an array lies in; None for memory of another kind."""
    owner: Any = array
    while owner is not None and not isinstance(owner, Mapping):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


class BufferPool:
    """Blocks of memory, each used again as soon as nothing refers to its last contents.

    Left to malloc, the memory that several threads take and give back in turn grows to half as much again as what is
    in use (93 MiB for 64), and fresh pages for each container make reading six times slower than its copy.
    At most ``max_free`` free blocks are kept, a number that can be changed at any time.
    """

    def __init__(self, max_free: int, *, allocate: Callable[[int], U8] = allocate_private) -> None:
        self.max_free, self._allocate = max_free, allocate
        self._free: list[U8] = []  # by size
        self._returned: list[U8] = []  # to be sorted in
        self._retired: set[int] = set()  # addresses of blocks that are not used again
        self._lock = threading.Lock()

    def borrow(self, size: int) -> memoryview:
        """Memory of ``size`` bytes, of any content, which returns to the pool when its last view goes."""
        with self._lock:
            while self._returned:
                insort(self._free, self._returned.pop(), key=len)
            smallest = bisect_left(self._free, size, key=len)
            if smallest < len(self._free):
                block = self._free.pop(smallest)
            else:
                if self._free:
                    self._free.pop()  # too small: it would only add to what is held
                block = self._allocate(-(-size // _GRANULE) * _GRANULE)
        # All views of this array keep it alive; when the last one goes, so does the array, and the block is free.
        borrowed = block[:size]
        weakref.finalize(borrowed, self._give_back, block).atexit = False
        return borrowed.data

    def retire(self, address: int) -> None:
        """Let go of the block at an address, which is borrowed, when it comes back."""
        self._retired.add(address)

    def _give_back(self, block: U8) -> None:
        if self._retired and (address := block.ctypes.data) in self._retired:
            self._retired.discard(address)
            return
        # Without the lock, as a finalizer may run in the thread that holds it; so it only appends, which is atomic.
        if len(self._free) + len(self._returned) < self.max_free:
            self._returned.append(block)


@dataclass(frozen=True, slots=True)
class BufferPools:
    """The pools that all epochs of a loader use: for containers, and for the images of batches."""

    containers: BufferPool = field(default_factory=lambda: BufferPool(1 << 20))  # as many as the budget allows
    batches: BufferPool = field(default_factory=lambda: BufferPool(KEPT_BATCHES))

    @classmethod
    def for_batches(cls, *, mapped: bool) -> BufferPools:
        """Pools whose batches lie in memory that can be page-locked, if it is ``mapped``."""
        return cls(batches=BufferPool(KEPT_BATCHES, allocate=allocate_mapped)) if mapped else cls()


class ThreadBuffer(threading.local):
    """One buffer a thread, which grows and is used again: fresh pages for every image cost a fifth of the decoding."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)

    def at_least(self, size: int) -> U8:
        """uint8 (m,) with m ≥ size, valid until this thread asks again."""
        if len(self._buffer) < size or not len(self._buffer):
            self._buffer = np.empty(max(size, _MIN_BYTES), dtype=np.uint8)
        return self._buffer


CUTS, PIXELS, PLAIN = ThreadBuffer(), ThreadBuffer(), ThreadBuffer()  # streams; decoded images; resampled, uncolored


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array in shared memory: its offset, shape, strides in bytes, and dtype."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def share_array(start: int, array: Array) -> SharedArray:
    """Describe an array in the block that begins at an address."""
    return SharedArray(array.ctypes.data - start, array.shape, array.strides, array.dtype.str)


def map_array(memory: U8, shared: SharedArray) -> Array:
    """Make an array that was described, in the memory of its block."""
    array: Array = np.ndarray(shared.shape, np.dtype(shared.dtype), memory.data, shared.offset, shared.strides)
    return array


def socket_of(connection: Connection) -> socket.socket:
    """Duplicate a connection as a socket, which the caller closes.

    Both wait for data: a time limit of ``socket.setdefaulttimeout``, which a new socket takes, would hold for both.
    """
    line = socket.socket(fileno=os.dup(connection.fileno()))
    line.setblocking(True)
    return line


def has_hung_up(error: Exception) -> bool:
    """Whether a connection's error says that the other side has ended or closed it.

    Where it ends in the middle of a message, ``Connection.recv`` raises an OSError without a number.
    """
    return isinstance(error, EOFError | ConnectionError) or (isinstance(error, OSError) and error.errno is None)


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send a file's descriptor, which stays open until the other side has received it.

    ``multiprocessing.reduction.send_handle`` would wait for an acknowledgement, from Python 3.14 on and on macOS, and
    take the first byte of the other side's next message for it.
    """
    with socket_of(connection) as line:
        socket.send_fds(line, [b"d"], [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """Receive a file's descriptor.

    Raises:
        EOFError: the other side has hung up.
        OSError: this process has too many open files.
    """
    with socket_of(connection) as line:
        data, descriptors, *_ = socket.recv_fds(line, 1, 1)
    if not data:
        raise EOFError
    if not descriptors:  # the kernel had no number for it
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return descriptors[0]
