"""Arrays in memory that two processes share: their description, and the descriptor of their memory, over a socket."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from picstore.arrays import U8, Array


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
