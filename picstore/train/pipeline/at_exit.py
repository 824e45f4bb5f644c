"""The end of the interpreter: what still makes batches is closed before it."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from picstore.train.pipeline.thread_pool import PREFIX


class Closable(Protocol):
    """A pipeline, or a loader's process."""

    def close(self) -> None:
        """End its threads or process; may be called from any thread, twice too."""


class Closables:
    """Objects to close together, which this set does not keep alive. Any thread may add to them."""

    def __init__(self) -> None:
        self._references: set[weakref.ref[Closable]] = set()

    def add(self, closable: Closable) -> None:
        """Have an object closed with the others."""
        self._references.add(weakref.ref(closable, self._references.discard))

    def __iter__(self) -> Iterator[Closable]:
        for reference in list(self._references):
            if (closable := reference()) is not None:
                yield closable


_open = Closables()
_exiting = threading.Event()


def close_at_exit(closable: Closable) -> None:
    """Close an object at the end of the interpreter, if it is still there."""
    _open.add(closable)
    wait_for_exit()


def wait_for_exit() -> None:
    """Wait for the end in a daemon thread of an interpreter that ends: nobody is left to take the thread's error."""
    if _exiting.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def _close_all() -> None:
    """End the threads before the interpreter does: one that it ends in the middle of C++ aborts the process."""
    _exiting.set()
    for closable in _open:
        closable.close()
    for thread in threading.enumerate():  # of a pipeline that another thread is closing as garbage
        if thread.name.startswith(PREFIX):
            with contextlib.suppress(RuntimeError):  # it is being started, by a thread that finds its pipeline closed
                thread.join()
