"""The one owner of processes on the preparing side: runs independent tasks, each in a process of its own.

A process a task, not a pool: a decoder that crashes or is killed takes down its own task and no other, its exit code
says so, and what a library leaks goes with it. Tasks are seconds to minutes long; starting one from the fork server,
which has the imports ready, takes about 10 ms.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from picstore.errors import PicstoreError

T = TypeVar("T")
R = TypeVar("R")
Report = Callable[[int], None]  # a task calls it with the number of inputs done since the last call

_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Died:
    """A task's process ended without a result: killed, out of memory, or crashed in a library."""

    exitcode: int

    def __str__(self) -> str:
        if self.exitcode < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-self.exitcode).name}"
        return f"its process ended with exit code {self.exitcode}"


@dataclass(slots=True, eq=False)
class _Running(Generic[T]):
    task: T
    process: BaseProcess
    connection: Connection


def default_workers() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(
    function: Callable[[T, Report], R],
    tasks: deque[T],
    *,
    workers: int,
    report: Report = lambda _: None,
    preload: Sequence[str] = (),
) -> Iterator[tuple[T, R | Died]]:
    """Run ``function(task, report)`` for each task and yield (task, result) as they end, in any order.

    At most ``workers`` run at a time, taken from the left of ``tasks``; the caller may append to it while iterating.
    An exception in a task is raised here; whatever ends the iteration ends the processes that still run.

    Args:
        function: a module's function; task and result must be picklable.
        report: called in this process with what tasks report, a few times a second.
        preload: modules to import before the first task starts, besides the function's; the processes inherit them.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__, *preload])
    running: list[_Running[T]] = []
    try:
        while True:
            while tasks and len(running) < workers:
                running.append(_start(context, function, tasks.popleft()))
            if not running:
                return
            wait([r.connection for r in running])
            for r in list(running):
                if not r.connection.poll():
                    continue
                ended, outcome = _receive(r, report)
                if ended:
                    running.remove(r)
                    yield r.task, outcome
    finally:
        for r in running:
            r.process.kill()
            r.process.join()


def _start(context: Any, function: Callable[[T, Report], R], task: T) -> _Running[T]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, function, task), daemon=True)
    process.start()
    theirs.close()
    return _Running(task, process, ours)


def _receive(running: _Running[T], report: Report) -> tuple[bool, Any]:
    """Take one message: (whether the task has ended, its result)."""
    try:
        kind, value = running.connection.recv()
    except (EOFError, OSError):
        running.process.join()
        return True, Died(running.process.exitcode or 0)
    if kind == "progress":
        report(value)
        return False, None
    running.process.join()
    running.connection.close()
    if kind == "error":
        raise value
    return True, value


def _work(connection: Connection, function: Callable[[T, Report], R], task: T) -> None:
    """The life of a task's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_follow_parent, args=(connection,), daemon=True).start()
    meter = _Meter(connection)
    try:
        result = function(task, meter.advance)
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


def _follow_parent(connection: Connection) -> None:
    """End with the parent, even if it was killed: an orphan would go on writing files that a resumed run writes too."""
    with contextlib.suppress(OSError, EOFError):
        connection.recv()
    os._exit(1)


def run_all(
    function: Callable[[T, Report], R], tasks: Iterable[T], *, workers: int, report: Report = lambda _: None
) -> list[tuple[T, R]]:
    """As :func:`run`, for tasks of which each must succeed: PicstoreError when one dies twice."""
    pending = deque(tasks)
    results: list[tuple[T, R]] = []
    for attempt in (1, 2):
        again: list[T] = []
        for task, outcome in run(function, pending, workers=workers, report=report):
            if isinstance(outcome, Died):
                if attempt == 2:
                    raise PicstoreError(f"a task died twice: {outcome}; with less memory in use it may succeed")
                again.append(task)
            else:
                results.append((task, outcome))
        pending = deque(again)
    return results
