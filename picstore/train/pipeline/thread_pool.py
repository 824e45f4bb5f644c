"""A pool of threads that runs calls in the order of their submission."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PREFIX = "picstore-"  # of the names of all our threads


def is_own_thread() -> bool:
    """Whether this is one of picstore's threads, which must not wait for others of them to end."""
    return threading.current_thread().name.startswith(PREFIX)


class Call(Protocol):
    """Run calls that wait until the pool ends; the main function of a pool's thread."""

    def run(self) -> None:
        """Do the work, in a thread of the pool, and report errors: nobody else does."""

    def cancel(self) -> None:
        """Note that the call will not be run."""


class ThreadPool:
    """``count`` threads with names of ``PREFIX`` and ``name``; the first call starts them.

    ``yields``: have other threads go first where cores are scarce, such as the one that reads what these decode: 2,959
    crops/s of 12 megapixels on two cores, 2,709 with equal shares.

    Not concurrent.futures' executor: that takes no more calls once the main thread has ended, while a training loop in
    another thread goes on, and a garbage collection in one of its threads cannot shut it down.
    """

    def __init__(self, count: int, name: str, *, yields: bool = False) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_run_calls, args=(self._calls, yields), name=f"{PREFIX}{name}_{k}", daemon=True)
            for k in range(count)
        ]
        self._lock = threading.Lock()
        self._state = "new"

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called; RuntimeError once the pool is closed."""
        call = _FutureCall(lambda: function(*args, **kwargs))
        self.put([call])
        return call.future

    def put(self, calls: Sequence[Call]) -> None:
        """Have calls run in this order; RuntimeError once the pool is closed."""
        with self._lock:
            if self._state == "closed":
                raise RuntimeError("the pool is closed")
            if self._state == "new":
                self._state = "running"
                for thread in self._threads:
                    thread.start()
            for call in calls:
                self._calls.put(call)

    def close(self) -> None:
        """Cancel the calls that have not begun, and wait for the others, but not from one of picstore's threads."""
        with self._lock:
            running, self._state = self._state == "running", "closed"
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                break
            if call is not None:
                call.cancel()
        for _ in self._threads:
            self._calls.put(None)
        if running and not is_own_thread():
            for thread in self._threads:
                thread.join()


class _FutureCall(Generic[R]):
    """A call whose result a future takes."""

    def __init__(self, function: Callable[[], R]) -> None:
        self.future: Future[R] = Future()
        self._function = function

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self._function())
            except BaseException as error:  # the thread that waits for the future raises it
                self.future.set_exception(error)

    def cancel(self) -> None:
        self.future.cancel()


def _run_calls(calls: SimpleQueue[Call | None], yields: bool) -> None:
    """The main function of a thread."""
    if yields and sys.platform == "linux":  # elsewhere only whole processes have a nice value
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 1)
    while (call := calls.get()) is not None:
        call.run()
        del call  # while the thread waits, nothing here holds what it ran
