"""Threads of the loader: their names, the pool that runs calls, the tasks of a batch, and their end.

Pipelines that nobody closes end here, with the interpreter or as garbage.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, ParamSpec, Protocol, TypeVar

from picstore.errors import Damage
from picstore.train.batching.host_batch import HostBatch

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


class FillingBatch:
    """A batch that decoding threads fill task by task; the thread that ends the last task completes it.

    Args:
        count: number of tasks.
        fill: makes some slots, and returns by slot why one has no image.
        complete: takes what all tasks returned, or None if one of them was cancelled.

    Attributes:
        finished: the batch; cancelled if a task was. Take it before the tasks begin: a batch that is finished lets go
            of it, since the traceback of an error in it holds the batch.
    """

    def __init__(
        self,
        count: int,
        fill: Callable[[range], dict[int, Damage]],
        complete: Callable[[dict[int, Damage] | None], HostBatch | None],
    ) -> None:
        self.finished: Future[HostBatch] = Future()
        self._left = count
        self._fill, self._complete = fill, complete
        self._problems: dict[int, Damage] = {}
        self._errors: dict[int, BaseException] = {}  # by first slot of a task
        self._cancelled = False
        self._lock = threading.Lock()

    def tasks(self, chunks: Sequence[range]) -> list[Call]:
        """Make a call for each of the chunks, which together are all slots."""
        return [_Task(self, chunk) for chunk in chunks]

    def fill(self, slots: range) -> None:
        """Do the task of some slots."""
        try:
            problems = self._fill(slots)
        except BaseException as error:  # the consumer raises it
            self._errors[slots.start] = error
        else:
            if problems:
                self._problems.update(problems)
        self._end_task()

    def cancel(self) -> None:
        """Leave out a task."""
        self._cancelled = True
        self._end_task()

    def _end_task(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        finished, errors = self.finished, self._errors
        del self.finished, self._errors
        try:
            batch = self._complete(None if self._cancelled or errors else self._problems)
            if errors and not self._cancelled:
                finished.set_exception(errors[min(errors)])
            elif batch is None:  # an error of this would hold the pipeline by its traceback, until a collection
                finished.cancel()
            else:
                finished.set_result(batch)
        except BaseException as error:  # the consumer raises it
            finished.set_exception(error)
        finally:
            del self._fill, self._complete, finished, errors  # the error's traceback may hold this frame


@dataclass(frozen=True, slots=True)
class _Task:
    """Some slots of a batch, as a call of the decoding threads."""

    batch: FillingBatch
    slots: range

    def run(self) -> None:
        self.batch.fill(self.slots)

    def cancel(self) -> None:
        self.batch.cancel()


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
