"""The one owner of processes on the preparing side: runs independent tasks, one at a time in each of its processes.

Each process has a pipe and a task of its own, and shares nothing: a decoder that crashes or is killed takes down its
own task and no other, and its exit code says so. A process that ended a task gets the next one, as starting another
from the fork server, which has the imports ready, takes 30 ms of both; but not after ``_LIFE_SECONDS``, so that what a
library leaks is given back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from picstore.errors import PicstoreError
from picstore.prepare.engine import stderr_capture

T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[int], None]  # a task calls it with the number of inputs done since the last call

_PROGRESS_SECONDS = 0.1
_LIFE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Died:
    """A task's process ended without a result: killed, out of memory, or crashed in a library."""

    exitcode: int

    @property
    def timed_out(self) -> bool:
        """Whether :func:`time_limit` ended it."""
        return self.exitcode == -signal.SIGALRM

    def __str__(self) -> str:
        if self.exitcode < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-self.exitcode).name}"
        return f"its process ended with exit code {self.exitcode}"


class Engine(Protocol):
    """Where tasks run: processes of this machine (:class:`Local`), or a cluster (``ray_engine.Ray``)."""

    def run(
        self, function: Callable[[T, Report], R], tasks: deque[T], *, report: Report = ...
    ) -> Iterator[tuple[T, R | Died]]:
        """As :func:`run`."""


@dataclass(frozen=True, slots=True)
class Local:
    """So many processes of this machine."""

    workers: int

    def run(
        self, function: Callable[[T, Report], R], tasks: deque[T], *, report: Report = lambda _: None
    ) -> Iterator[tuple[T, R | Died]]:
        return run(function, tasks, workers=self.workers, report=report)


def as_engine(workers: int | Engine) -> Engine:
    """The engine that is meant: a number stands for processes of this machine."""
    return Local(workers) if isinstance(workers, int) else workers


@dataclass(slots=True, eq=False)
class _Worker(Generic[T]):
    process: BaseProcess
    connection: Connection
    born: float
    task: T


def default_workers() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start(*modules: str) -> None:
    """Begin to start the fork server, which imports ``modules``, and return at once; :func:`run` then finds it ready.

    Only the first call of a process has an effect, be it this one or that of :func:`run`.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))
    forkserver.ensure_running()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process by SIGALRM, which nobody handles, if the block takes longer; 0 is no limit.

    It is the kernel that does so: C code that never comes back to Python, with the GIL or without, ends too. Nothing
    has to watch, and a block costs two system calls (6 µs, where one that does nothing took 1.3). For tasks of
    :func:`run`, where a process that dies costs one task.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(
    function: Callable[[T, Report], R],
    tasks: deque[T],
    *,
    workers: int,
    report: Report = lambda _: None,
) -> Iterator[tuple[T, R | Died]]:
    """Run ``function(task, report)`` for each task and yield (task, result) as they end, in any order.

    At most ``workers`` run at a time, taken from the left of ``tasks``; the caller may append to it while iterating.
    An exception in a task is raised here; whatever ends the iteration ends the processes that still run.

    Args:
        function: a module's function; task and result must be picklable.
        report: called in this process with what tasks report, a few times a second.
    """
    start(function.__module__)
    running: list[_Worker[T]] = []
    idle: list[_Worker[T]] = []
    try:
        while True:
            while tasks and len(running) < workers:
                running.append(_begin(function, tasks.popleft(), idle))
            if not running:
                return
            wait([worker.connection for worker in running])
            for worker in list(running):
                if not worker.connection.poll():
                    continue
                ended, outcome = _receive(worker, report)
                if ended:
                    running.remove(worker)
                    if not isinstance(outcome, Died):
                        idle.append(worker)
                    yield worker.task, outcome
    finally:
        for worker in running + idle:
            _end(worker)


def _begin(function: Callable[[T, Report], R], task: T, idle: list[_Worker[T]]) -> _Worker[T]:
    """Hand a task to an idle process, or to a new one."""
    while idle:
        worker = idle.pop()
        if time.monotonic() - worker.born < _LIFE_SECONDS:
            worker.task = task
            break
        _end(worker)
    else:
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, function), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours, time.monotonic(), task)
    with contextlib.suppress(OSError):  # it is dead, which its end of the pipe tells
        worker.connection.send(task)
    return worker


def _end(worker: _Worker[T]) -> None:
    worker.process.kill()
    worker.process.join()
    worker.connection.close()


def _receive(worker: _Worker[T], report: Report) -> tuple[bool, Any]:
    """Take one message: (whether the task has ended, its result)."""
    try:
        kind, value = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join()
        worker.connection.close()
        return True, Died(worker.process.exitcode or 0)
    if kind == "progress":
        report(value)
        return False, None
    if kind == "error":
        raise value
    return True, value


def _work(connection: Connection, function: Callable[[T, Report], R]) -> None:
    """The life of a process."""
    stderr_capture.divert()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # else a time limit is in vain where the user's program ignores it
    tasks: queue.SimpleQueue[T] = queue.SimpleQueue()
    threading.Thread(target=_follow_parent, args=(connection, tasks), daemon=True).start()
    meter = _Meter(connection)
    try:
        while True:
            result = function(tasks.get(), meter.advance)
            meter.send()
            connection.send(("result", result))
    except (PicstoreError, OSError) as error:
        connection.send(("error", error))


class _Meter:
    """Sends progress at most ten times a second: a message costs both sides 50 µs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._sent = time.monotonic()

    def advance(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._sent >= _PROGRESS_SECONDS:
            self.send()

    def send(self) -> None:
        self._connection.send(("progress", self._count))
        self._count = 0
        self._sent = time.monotonic()


def _follow_parent(connection: Connection, tasks: queue.SimpleQueue[T]) -> None:
    """Take tasks, and end with the parent, even if it was killed.

    An orphan would go on writing files that a resumed run writes too.
    """
    with contextlib.suppress(OSError, EOFError):
        while True:
            tasks.put(connection.recv())
    os._exit(1)


def run_all(
    function: Callable[[T, Report], R], tasks: Iterable[T], *, workers: int | Engine, report: Report = lambda _: None
) -> list[tuple[T, R]]:
    """As :func:`run`, for tasks of which each must succeed: PicstoreError when one dies twice."""
    pending = deque(tasks)
    results: list[tuple[T, R]] = []
    for attempt in (1, 2):
        again: list[T] = []
        for task, outcome in as_engine(workers).run(function, pending, report=report):
            if isinstance(outcome, Died):
                if attempt == 2:
                    raise PicstoreError(f"a task died twice: {outcome}; with less memory in use it may succeed")
                again.append(task)
            else:
                results.append((task, outcome))
        pending = deque(again)
    return results
