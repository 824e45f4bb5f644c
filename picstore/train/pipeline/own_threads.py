"""Threads of the loader: their names, the pool that runs calls, the tasks of a batch, and their end.

Pipelines that nobody closes are closed here, when they become garbage or when the interpreter ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, ParamSpec, Protocol, TypeVar

from picstore.errors import Damage
from picstore.train.batching.host_batch import HostBatch

P = ParamSpec("P")
R = TypeVar("R")

PREFIX = "picstore-"  # Prefix of the names of picstore's own threads.


def is_own_thread() -> bool:
    """Return whether this thread is one of picstore's own threads, which must not wait for each other to end."""
    return threading.current_thread().name.startswith(PREFIX)


class Call(Protocol):
    """Work for a thread of a ``ThreadPool``."""

    def run(self) -> None:
        """Do the work, in a thread of the pool, and handle all errors, because the pool handles none."""

    def cancel(self) -> None:
        """Note that the pool will not run the call, because the pool was closed."""


class ThreadPool:
    """``count`` threads that run calls in the order of submission; the first call starts the threads.

    With ``yields``, the threads have a lower priority than other threads. On two cores, crops of images of 12
    megapixels are then made at 2,959 images/s, against 2,709 with equal priorities.

    An executor of concurrent.futures would take no calls once the main thread has ended, although a training loop may
    continue in another thread. Nor could a garbage collection in one of its threads shut it down.
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
        """Submit a call of a function and return the call's future; raise RuntimeError if the pool is closed."""
        call = _FutureCall(lambda: function(*args, **kwargs))
        self.put([call])
        return call.future

    def put(self, calls: Sequence[Call]) -> None:
        """Submit calls, in order; raise RuntimeError if the pool is closed."""
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
        """Cancel calls that have not begun; wait for running calls unless this is one of picstore's own threads."""
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
    def __init__(self, function: Callable[[], R]) -> None:
        self.future: Future[R] = Future()
        self._function = function

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self._function())
            except BaseException as error:
                self.future.set_exception(error)

    def cancel(self) -> None:
        self.future.cancel()


def _run_calls(calls: SimpleQueue[Call | None], yields: bool) -> None:
    """Run calls until the pool sends None; on Linux, ``yields`` lowers the thread's priority."""
    if yields and sys.platform == "linux":  # Other systems have priorities only of whole processes.
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # A sandbox may forbid a change of priority.
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 1)
    while (call := calls.get()) is not None:
        call.run()
        del call  # Otherwise this thread would keep the call alive while it waits.


class FillingBatch:
    """A batch that decoding threads fill task by task; the thread that ends the last task completes the batch.

    All tasks share one future, because a future for each task took 30 µs under the GIL.

    Args:
        fill: function that fills slots (places of images in the batch) with images; it returns the damage of each slot
            that gets no image.
        complete: function that completes the batch, given the damage of all slots, or None if a task failed or was
            cancelled.

    Attributes:
        finished: future of the batch, cancelled if a task was cancelled. Get the future before the tasks begin, because
            a finished batch drops it.
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
        self._errors: dict[int, BaseException] = {}  # errors of failed tasks, by a task's first slot
        self._cancelled = False
        self._lock = threading.Lock()

    def tasks(self, chunks: Sequence[range]) -> list[Call]:
        """Return a call for each chunk of slots; together the chunks must hold all slots of the batch."""
        return [_Task(self, chunk) for chunk in chunks]

    def fill(self, slots: range) -> None:
        """Fill the slots of one task, and end the task."""
        try:
            problems = self._fill(slots)
        except BaseException as error:  # The future raises the error for the consumer.
            self._errors[slots.start] = error
        else:
            if problems:
                self._problems.update(problems)
        self._end_task()

    def cancel(self) -> None:
        """End one task without filling its slots; after the last task, the whole batch is cancelled."""
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
            elif batch is None:
                # Cancel the future, because an error that it held would keep the pipeline alive by its traceback.
                finished.cancel()
            else:
                finished.set_result(batch)
        except BaseException as error:
            finished.set_exception(error)
        finally:
            del self._fill, self._complete, finished, errors  # An error's traceback may keep this frame in memory.


@dataclass(frozen=True, slots=True)
class _Task:
    batch: FillingBatch
    slots: range

    def run(self) -> None:
        self.batch.fill(self.slots)

    def cancel(self) -> None:
        self.batch.cancel()


class Closable(Protocol):
    """Object with threads or a process, such as a pipeline or a loader process."""

    def close(self) -> None:
        """End the threads or the process; any thread may call this, more than once."""


class Closables:
    """Weak set of objects to close together; any thread may add an object."""

    def __init__(self) -> None:
        self._references: set[weakref.ref[Closable]] = set()

    def add(self, closable: Closable) -> None:
        """Add an object without keeping it alive."""
        self._references.add(weakref.ref(closable, self._references.discard))

    def __iter__(self) -> Iterator[Closable]:
        for reference in list(self._references):
            if (closable := reference()) is not None:
                yield closable


_IDLE_SECONDS = 2.0

_open = Closables()
_iterations: weakref.WeakSet[Generator[object, None, None]] = weakref.WeakSet()
_exiting = threading.Event()


def close_at_exit(closable: Closable) -> None:
    """Close an object when the interpreter ends, unless the object has been deleted by then."""
    _open.add(closable)
    wait_for_exit()
    _garbage.start()


def end_at_exit(iteration: Generator[R, None, None]) -> Generator[R, None, None]:
    """Close a suspended generator when the interpreter ends, before its modules are emptied; return the generator.

    Otherwise the ``finally`` clauses of a generator that a script leaves open run when the modules' names are None.
    """
    _iterations.add(iteration)
    return iteration


class _Garbage:
    """Thread that closes objects found by a garbage collection; the thread runs while any object is open.

    A collection may begin in a thread that holds a lock, such as ``threading.enumerate``'s. Waiting there for a
    pipeline's threads, which need that lock in order to end, would be a deadlock.
    """

    def __init__(self) -> None:
        self.forget()
        gc.callbacks.append(self._note_collection)
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Set the initial state: no closing thread and no object to close."""
        self._collecting: set[int] = set()  # ids of the threads in which a garbage collection runs
        # A SimpleQueue, whose ``put`` is reentrant, because a garbage collection may interrupt another ``put``.
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = False

    def _note_collection(self, phase: str, _: object) -> None:
        (self._collecting.add if phase == "start" else self._collecting.discard)(threading.get_ident())

    def start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="close-garbage", daemon=True).start()

    def call(self, close: Callable[[], None]) -> None:
        """Call ``close`` now or, if a garbage collection is running in this thread, later in the closing thread."""
        if threading.get_ident() in self._collecting:
            self._waiting.put(close)
        else:
            close()

    def call_all(self) -> None:
        """Call, in this thread, all functions that wait for the closing thread."""
        with contextlib.suppress(Empty):
            while True:
                self._waiting.get_nowait()()

    def _run(self) -> None:
        try:
            while not self._is_idle():
                with contextlib.suppress(Empty):
                    self._waiting.get(timeout=_IDLE_SECONDS)()
        except BaseException:  # The error ends this thread; Python's threading prints it.
            self._started = False
            raise

    def _is_idle(self) -> bool:
        """Return whether the closing thread may end.

        A garbage collection removes an object from ``_open`` before it puts the object's ``close`` into ``_waiting``.
        Check ``_open`` first, so that no object is missed.
        """
        with self._lock:
            idle = next(iter(_open), None) is None and not self._collecting and self._waiting.empty()
            self._started = not idle
            return idle


_garbage = _Garbage()


def close_garbage(close: Callable[[], None]) -> None:
    """Call the ``close`` of an object that may be garbage: now or, during a garbage collection, soon after."""
    _garbage.call(close)


def wait_for_exit() -> None:
    """Block a daemon thread forever if the interpreter is ending, so that it cannot use closed objects."""
    if _exiting.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def _close_all() -> None:
    """End all threads before the interpreter does, because ending a thread inside C++ aborts the process."""
    _exiting.set()
    for iteration in list(_iterations):
        with contextlib.suppress(ValueError):  # A daemon thread is inside the generator, and ends with the process.
            iteration.close()
    _garbage.call_all()
    for closable in _open:
        closable.close()
    # Wait, because another thread may be closing a pipeline as garbage, or starting a thread of a closed pipeline.
    for thread in threading.enumerate():
        if thread.name.startswith(PREFIX):
            with contextlib.suppress(RuntimeError):
                thread.join()
