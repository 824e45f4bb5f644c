"""An array of integers in memory that a loader and a DataLoader's workers share."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from picstore.arrays import I64
from picstore.train.buffers import anonymous_memory


class SharedIntegers:
    """int64 array, initially zero, shared by the process that created it with the workers of its DataLoaders.

    Any other process that is forked or receives the array gets a private copy. Pickling copies the array, except while
    a process is being spawned.

    The array is not a torch tensor, because torch aborts the process if a daemon thread frees a tensor while the
    interpreter ends.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._attach(anonymous_memory(8 * int(np.prod(shape))), shape)

    @property
    def values(self) -> I64:
        """The shared array; a private copy in a process that neither created it nor is a DataLoader's worker."""
        if self._pid != os.getpid() and get_worker_info() is None:
            shape = self._inherited.shape
            inherited = self._inherited
            self._attach(anonymous_memory(8 * int(np.prod(shape))), shape)
            self._values[...] = inherited
        return self._values

    def _attach(self, descriptor: int, shape: tuple[int, ...]) -> None:
        self._pid, self._descriptor = os.getpid(), descriptor
        self._values: I64 = np.frombuffer(mmap.mmap(descriptor, 8 * int(np.prod(shape))), np.int64).reshape(shape)
        # Values with which the private array of a forked process begins; ``note_values`` copies them before a fork.
        self._inherited: I64 = self._values
        weakref.finalize(self, os.close, descriptor).atexit = False
        _arrays.add(self)

    def note_values(self) -> None:
        """Note the current values for a process that is about to be forked."""
        self._inherited = self.values.copy()

    def __reduce__(self) -> tuple[Callable[..., SharedIntegers], tuple[Any, ...]]:
        values = self.values
        if get_spawning_popen() is None:
            return _copied, (values.tobytes(), values.shape)
        return _attached, (DupFd(self._descriptor), values.tobytes(), values.shape, self._pid)


_arrays: weakref.WeakSet[SharedIntegers] = weakref.WeakSet()


def _note_all() -> None:
    for array in list(_arrays):
        array.note_values()


os.register_at_fork(before=_note_all)


def _copied(values: bytes, shape: tuple[int, ...]) -> SharedIntegers:
    copy = SharedIntegers(shape)
    copy.values[:] = np.frombuffer(values, np.int64).reshape(shape)
    return copy


def _attached(descriptor: Any, values: bytes, shape: tuple[int, ...], pid: int) -> SharedIntegers:
    shared = SharedIntegers.__new__(SharedIntegers)
    shared._attach(descriptor.detach(), shape)
    shared._pid, shared._inherited = pid, np.frombuffer(values, np.int64).reshape(shape)
    return shared
