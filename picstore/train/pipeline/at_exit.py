"""The ends of pipelines that nobody closes: with the interpreter, or as garbage."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
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


_IDLE_SECONDS = 2.0

_open = Closables()
_exiting = threading.Event()


def close_at_exit(closable: Closable) -> None:
    """Close an object at the end of the interpreter, if it is still there."""
    _open.add(closable)
    wait_for_exit()
    _garbage.start()


class _Garbage:
    """Closes what a garbage collection finds, in a thread that runs while anything is open.

    A collection runs at any place. Its thread may hold a lock there that the threads of a pipeline need to end, such as
    the lock of ``threading.enumerate``: waiting for them hung for ever.
    """

    def __init__(self) -> None:
        self.forget()
        gc.callbacks.append(self._note_collection)
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Forget the thread, its calls and other threads' collections, which a fork does not have."""
        self._collecting: set[int] = set()  # threads in which a collection runs
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()  # takes calls without a lock of Python's
        self._lock = threading.Lock()
        self._started = False

    def _note_collection(self, phase: str, _: object) -> None:
        (self._collecting.add if phase == "start" else self._collecting.discard)(threading.get_ident())

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="close-garbage", daemon=True).start()

    def call(self, close: Callable[[], None]) -> None:
        """Call a function, in the thread if this is a collection."""
        if threading.get_ident() in self._collecting:
            self._waiting.put(close)
        else:
            close()

    def call_all(self) -> None:
        """Make the calls that wait."""
        with contextlib.suppress(Empty):
            while True:
                self._waiting.get_nowait()()

    def _run(self) -> None:
        try:
            while not self._is_idle():
                with contextlib.suppress(Empty):
                    self._waiting.get(timeout=_IDLE_SECONDS)()
        except BaseException:  # which threading prints
            self._started = False
            raise

    def _is_idle(self) -> bool:
        """Whether nothing is open or waits, and the thread may end; in this order, as a collection may go on."""
        with self._lock:
            idle = next(iter(_open), None) is None and not self._collecting and self._waiting.empty()
            self._started = not idle
            return idle


_garbage = _Garbage()


def close_garbage(close: Callable[[], None]) -> None:
    """Close what may be garbage, by its ``close``: at once, or soon where this is called in a garbage collection."""
    _garbage.call(close)


def wait_for_exit() -> None:
    """Wait for the end in a daemon thread of an interpreter that ends: nobody is left to take the thread's error."""
    if _exiting.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def _close_all() -> None:
    """End the threads before the interpreter does: one that it ends in the middle of C++ aborts the process."""
    _exiting.set()
    _garbage.call_all()
    for closable in _open:
        closable.close()
    for thread in threading.enumerate():  # of a pipeline that another thread is closing as garbage
        if thread.name.startswith(PREFIX):
            with contextlib.suppress(RuntimeError):  # it is being started, by a thread that finds its pipeline closed
                thread.join()
