"""Memory for reuse: pools, a working buffer for each thread, and memory shared with other processes."""

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

_GRANULE = 1 << 16  # Sizes of blocks in bytes are multiples of this, so that a block can be reused for most containers.
_MIN_BYTES = 1 << 20  # Minimum size of a thread's buffer in bytes.
# Number of free blocks to keep: for batches made ahead, two batches of the consumer, and batches on the way to a GPU.
KEPT_BATCHES = 9


def allocate_private(size: int) -> U8:
    """Allocate memory of this process alone, uint8 (size,)."""
    return np.empty(size, dtype=np.uint8)


def anonymous_memory(size: int) -> int:
    """Return a descriptor of ``size`` bytes of new memory, to be shared by mapping; the memory has no file name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("picstore")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Mapping:
    """Mapped memory. ``np.asarray`` returns it as a uint8 array; the memory stays mapped while any such array exists.

    Attributes:
        locked: whether CUDA has page-locked the memory for a GPU.
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


_FAILED = ctypes.c_void_p(-1).value  # result MAP_FAILED of C's mmap
_MAYMOVE, _FIXED = 1, 2  # flags MREMAP_MAYMOVE and MREMAP_FIXED of Linux's mremap
_MAP_FIXED = 0x10


def map_memory(descriptor: int, size: int) -> Mapping:
    """Map shared memory until its last array is deleted, without keeping a file descriptor.

    ``mmap.mmap`` keeps a descriptor before Python 3.13, so 500 kept batches reached a process's limit of descriptors.

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
    """Replace shared memory by private memory with the same content at the same address.

    Other threads may read meanwhile, because mremap replaces all pages at once; what they write may be lost.

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
    """Allocate memory in a :class:`Mapping`, uint8 (size,); forked processes share it."""
    descriptor = anonymous_memory(size)
    try:
        return np.asarray(map_memory(descriptor, size))
    finally:
        os.close(descriptor)


def round_coarsely(size: int) -> int:
    """Round a size up by at most a quarter, so that a few sizes of blocks serve batches of any size.

    A new block costs time, because CUDA page-locks it. Of 280 batches of 26 to 38 MB, 35 needed a new block with exact
    sizes, and 17 with rounded sizes.
    """
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step


def find_mapping(array: Array) -> Mapping | None:
    """Return the mapping in whose memory an array lies; None if the array's memory is of another kind."""
    owner: Any = array
    while owner is not None and not isinstance(owner, Mapping):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner


class BufferPool:
    """Pool of memory blocks; a block is reused as soon as no array refers to its memory.

    At most ``max_free`` free blocks are kept; the number may be changed at any time. malloc would need one and a half
    times the memory in use (93 MiB for 64 MiB) if several threads allocate and free in turn. Reading a container into
    new pages takes six times as long as copying it.
    """

    def __init__(self, max_free: int, *, allocate: Callable[[int], U8] = allocate_private) -> None:
        self.max_free, self._allocate = max_free, allocate
        self._free: list[U8] = []  # sorted by size
        self._returned: list[U8] = []  # Blocks given back by any thread; ``borrow`` moves them to ``_free``.
        self._retired: set[int] = set()  # Addresses of blocks to free instead of reusing.
        self._lock = threading.Lock()

    def borrow(self, size: int) -> memoryview:
        """Return ``size`` bytes of any content; the pool reuses the memory once the last array in it is deleted."""
        with self._lock:
            while self._returned:
                insort(self._free, self._returned.pop(), key=len)
            smallest = bisect_left(self._free, size, key=len)
            if smallest < len(self._free):
                block = self._free.pop(smallest)
            else:
                if self._free:
                    self._free.pop()  # Free the largest block, which is too small; a new block takes its place.
                block = self._allocate(-(-size // _GRANULE) * _GRANULE)
        # Every view keeps this array alive. With the last view, the array is deleted too, and the block is free.
        borrowed = block[:size]
        weakref.finalize(borrowed, self._give_back, block).atexit = False
        return borrowed.data

    def retire(self, address: int) -> None:
        """Let the block at an address be freed instead of reused, as soon as no array lies in it."""
        self._retired.add(address)

    def _give_back(self, block: U8) -> None:
        if self._retired and (address := block.ctypes.data) in self._retired:
            self._retired.discard(address)
            return
        # Only append, which is atomic, because this finalizer may run in the thread that holds the lock.
        if len(self._free) + len(self._returned) < self.max_free:
            self._returned.append(block)


@dataclass(frozen=True, slots=True)
class BufferPools:
    """Memory pools that all epochs of a loader share: for containers, and for the images of batches."""

    # The number of free blocks is in effect unlimited here, because the loader's budget limits the containers' bytes.
    containers: BufferPool = field(default_factory=lambda: BufferPool(1 << 20))
    batches: BufferPool = field(default_factory=lambda: BufferPool(KEPT_BATCHES))

    @classmethod
    def for_batches(cls, *, mapped: bool) -> BufferPools:
        """Return pools; if ``mapped`` is true, batches lie in mapped memory, which CUDA can page-lock."""
        return cls(batches=BufferPool(KEPT_BATCHES, allocate=allocate_mapped)) if mapped else cls()


class ThreadBuffer(threading.local):
    """Buffer that each thread has of its own and reuses. New memory per image would take 1/5 of the decoding time."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)

    def at_least(self, size: int) -> U8:
        """Return this thread's buffer, uint8 (m,) with m ≥ ``size``; the thread's next call may return the same."""
        if len(self._buffer) < size or not len(self._buffer):
            self._buffer = np.empty(max(size, _MIN_BYTES), dtype=np.uint8)
        return self._buffer


# Buffers for the parts of JPEGs that crops need, for decoded pixels, and for pixels between resampling and color.
CUTS, PIXELS, PLAIN = ThreadBuffer(), ThreadBuffer(), ThreadBuffer()


@dataclass(frozen=True, slots=True)
class SharedArray:
    """Description of an array in a block of shared memory: offset in the block, shape, strides in bytes, and dtype."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def share_array(start: int, array: Array) -> SharedArray:
    """Return the description of an array that lies in the block of memory at address ``start``."""
    return SharedArray(array.ctypes.data - start, array.shape, array.strides, array.dtype.str)


def map_array(memory: U8, shared: SharedArray) -> Array:
    """Return the array that ``shared`` describes, in the block ``memory``."""
    array: Array = np.ndarray(shared.shape, np.dtype(shared.dtype), memory.data, shared.offset, shared.strides)
    return array


def socket_of(connection: Connection) -> socket.socket:
    """Duplicate a connection's descriptor as a socket, which the caller has to close.

    The socket blocks even after ``socket.setdefaulttimeout``, because a timeout would apply to the connection too.
    """
    line = socket.socket(fileno=os.dup(connection.fileno()))
    line.setblocking(True)
    return line


def has_hung_up(error: Exception) -> bool:
    """Return whether a connection's error means that the other side has ended or has closed the connection.

    ``Connection.recv`` raises an OSError without an errno if the other side ends amid a message.
    """
    return isinstance(error, EOFError | ConnectionError) or (isinstance(error, OSError) and error.errno is None)


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Send a file descriptor, which must stay open until the other side has received it.

    ``multiprocessing.reduction.send_handle`` is not usable here: on macOS, and from Python 3.14 on, it waits for an
    acknowledgement, and would take the first byte of the other side's next message for one.
    """
    with socket_of(connection) as line:
        socket.send_fds(line, [b"d"], [descriptor])


def receive_descriptor(connection: Connection) -> int:
    """Receive a file descriptor.

    Raises:
        EOFError: the other side has hung up.
        OSError: this process has too many open files.
    """
    with socket_of(connection) as line:
        data, descriptors, *_ = socket.recv_fds(line, 1, 1)
    if not data:
        raise EOFError
    if not descriptors:  # The message came without its descriptor, because this process has too many open files.
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return descriptors[0]
