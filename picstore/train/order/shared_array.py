"""An array of integers in memory that forked and spawned processes share."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.train.buffers import anonymous_memory


class SharedIntegers:
    """int64 ``values`` of a shape, at first 0, that a fork shares, and a process that it is given to as an argument.

    Pickled otherwise, it is copied. Not a torch tensor: one that a daemon thread frees while the interpreter ends
    aborts the process, since torch takes the interpreter's lock in a destructor.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._attach(anonymous_memory(8 * int(np.prod(shape))), shape)

    def _attach(self, descriptor: int, shape: tuple[int, ...]) -> None:
        self._descriptor = descriptor
        self.values: I64 = np.frombuffer(mmap.mmap(descriptor, 8 * int(np.prod(shape))), np.int64).reshape(shape)
        weakref.finalize(self, os.close, descriptor).atexit = False

    def __reduce__(self) -> tuple[Callable[..., SharedIntegers], tuple[Any, ...]]:
        if get_spawning_popen() is None:
            return _copied, (self.values.tobytes(), self.values.shape)
        return _attached, (DupFd(self._descriptor), self.values.shape)


def _copied(values: bytes, shape: tuple[int, ...]) -> SharedIntegers:
    copy = SharedIntegers(shape)
    copy.values[:] = np.frombuffer(values, np.int64).reshape(shape)
    return copy


def _attached(descriptor: Any, shape: tuple[int, ...]) -> SharedIntegers:
    shared = SharedIntegers.__new__(SharedIntegers)
    shared._attach(descriptor.detach(), shape)
    return shared
