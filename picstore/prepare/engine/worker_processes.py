"""Worker processes of this machine, which run independent tasks, each process one at a time.

Each process has its own pipe. A decoder that crashes or is killed ends its own task only, and the exit code tells the
cause. A process takes tasks for ``_MAX_LIFE_SECONDS``, because starting a process takes 30 ms even from the fork server
(``fork_server.py``), which has the imports ready. Then the process ends, which frees the memory that libraries leak.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeVar

from picstore.display.progress import ProgressCallback, progress_callback
from picstore.errors import PicstoreError
from picstore.prepare.engine.fork_server import Forked, ForkServer
from picstore.prepare.engine.library_errors import capture_stderr

T = TypeVar("T")
R = TypeVar("R")

# Seconds between two progress messages of a task; each costs sender and receiver 50 µs.
_PROGRESS_SECONDS = 0.1
# Default age in seconds above which a worker process gets no more tasks.
_MAX_LIFE_SECONDS = 10.0
_IGNORE_PROGRESS = progress_callback(None)


@dataclass(frozen=True, slots=True)
class Died:
    """Outcome of a task whose process died: it was killed, ran out of memory, or crashed in a library."""

    exitcode: int

    @property
    def timed_out(self) -> bool:
        """Whether SIGALRM ended the process, because a task exceeded its :func:`time_limit`."""
        return self.exitcode == -signal.SIGALRM

    def __str__(self) -> str:
        if self.exitcode < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-self.exitcode).name}"
        return f"its process ended with exit code {self.exitcode}"


class Engine(Protocol):
    """Runner of tasks on this machine (:class:`LocalEngine`) or on a Ray cluster (``engine.ray.RayEngine``)."""

    @property
    def workers(self) -> int:
        """Largest number of tasks that run at a time."""

    def run(
        self, function: Callable[[T, ProgressCallback], R], tasks: deque[T], *, on_progress: ProgressCallback = ...
    ) -> Iterator[tuple[T, R | Died]]:
        """Run ``function(task, on_progress)`` for each task; yield (task, result or :class:`Died`) as each task ends.

        At most ``workers`` tasks run at a time. Tasks are taken from the left of ``tasks``; the caller may append tasks
        meanwhile.

        Args:
            function: module-level function; task and result must be picklable.
            on_progress: function called in this process with the counts that tasks report, a few times a second.

        Raises:
            PicstoreError, OSError: the error that a task raised.
        """


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """Engine that runs tasks in up to ``workers`` processes on this machine.

    A process older than ``max_life`` seconds gets no more tasks and is replaced; None stands for ``_MAX_LIFE_SECONDS``.
    ``math.inf`` suits a function that loads a model, because each process then loads the model only once.
    """

    workers: int
    max_life: float | None = None

    def run(
        self,
        function: Callable[[T, ProgressCallback], R],
        tasks: deque[T],
        *,
        on_progress: ProgressCallback = _IGNORE_PROGRESS,
    ) -> Generator[tuple[T, R | Died], None, None]:
        """Run tasks; see :class:`Engine`. The worker processes end when the iteration ends."""
        running: list[_Worker[T]] = []
        idle: list[_Worker[T]] = []
        try:
            while True:
                while tasks and len(running) < self.workers:
                    running.append(_start_task(function, tasks.popleft(), idle, self.max_life))
                if not running:
                    return
                wait([worker.process.connection for worker in running])
                for worker in list(running):
                    if not worker.process.connection.poll():
                        continue
                    ended, outcome = _receive_message(worker, on_progress)
                    if ended:
                        running.remove(worker)
                        if not isinstance(outcome, Died):
                            idle.append(worker)
                        yield worker.task, outcome
        finally:
            for worker in running + idle:
                worker.process.close()


def as_engine(workers: int | Engine) -> Engine:
    """Return an engine unchanged, or a :class:`LocalEngine` with the given number of processes."""
    return LocalEngine(workers) if isinstance(workers, int) else workers


@dataclass(slots=True, eq=False)
class _Worker(Generic[T]):
    """Worker process, the monotonic time in seconds at which it started, and its current task."""

    process: Forked
    started: float
    task: T


_server: ForkServer | None = None


def start_fork_server(*loaded: str) -> ForkServer:
    """Start the fork server, which loads code in the background (see :class:`ForkServer`), and return immediately.

    While the server runs, further calls, such as those of :class:`LocalEngine`, have no effect.
    """
    global _server
    if _server is None or not _server.alive:
        stop_fork_server()
        _server = ForkServer(*loaded)
    return _server


def stop_fork_server() -> None:
    """End the fork server; the next call of ``start_fork_server`` starts one with the current environment variables."""
    global _server
    if _server is not None:
        _server.close()
    _server = None


def wait_for_fork_server() -> None:
    """Wait until the fork server has loaded its code; if it compiles kernels, stderr shows that."""
    start_fork_server().wait()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process by SIGALRM if the ``with`` block takes more than ``seconds``; 0 sets no limit.

    Use this only in tasks, because their engine replaces the process. The process ends even in C code that does not
    return to Python, with or without the GIL. A block costs 6 µs.
    """
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _start_task(
    function: Callable[[T, ProgressCallback], R], task: T, idle: list[_Worker[T]], max_life: float | None
) -> _Worker[T]:
    """Send a task to an idle worker younger than ``max_life`` seconds, else to a new worker; return the worker."""
    most = _MAX_LIFE_SECONDS if max_life is None else max_life
    while idle:
        worker = idle.pop()
        if time.monotonic() - worker.started < most:
            worker.task = task
            break
        worker.process.close()
    else:
        process = start_fork_server(function.__module__).fork(functools.partial(_serve_tasks, function))
        worker = _Worker(process, time.monotonic(), task)
    # Ignore the error of sending to a dead process: ``_receive_message`` will find the socket closed.
    with contextlib.suppress(OSError):
        worker.process.connection.send(task)
    return worker


def _receive_message(worker: _Worker[T], on_progress: ProgressCallback) -> tuple[bool, Any]:
    """Receive a message from a worker; return whether the worker's task has ended, and the task's result or Died."""
    try:
        kind, value = worker.process.connection.recv()
    except (EOFError, OSError):
        worker.process.close()
        return True, Died(worker.process.wait())
    if kind == "progress":
        on_progress(value)
        return False, None
    if kind == "error":
        raise value
    return True, value


def _serve_tasks(function: Callable[[T, ProgressCallback], R], connection: Connection) -> None:
    """Run, in a worker process, the tasks received through a pipe until the pipe is closed."""
    capture_stderr()
    # Ctrl-C signals the whole process group, but only the parent process must react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A user's program may ignore SIGALRM, which would disable time limits.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    tasks: queue.SimpleQueue[T] = queue.SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(connection, tasks), daemon=True).start()
    meter = _ProgressMeter(connection)
    try:
        while True:
            result = function(tasks.get(), meter.advance)
            meter.send()
            connection.send(("result", result))
    except (PicstoreError, OSError) as error:
        connection.send(("error", error))


class _ProgressMeter:
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


def _receive_tasks(connection: Connection, tasks: queue.SimpleQueue[T]) -> None:
    """Queue the tasks that come through the pipe; end this process when the parent process ends, even by SIGKILL.

    Otherwise this process would write files that a resumed run also writes. Report an error if a task cannot be
    unpickled.
    """
    try:
        while True:
            tasks.put(connection.recv())
    except (OSError, EOFError):
        pass
    # The main thread sends on this connection too, but not now: it waits until this thread has queued the next task.
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(("error", PicstoreError(f"a process cannot read its task: {error!r}")))
    os._exit(1)


def run_each(
    function: Callable[[T, ProgressCallback], R],
    tasks: Iterable[T],
    *,
    workers: int | Engine,
    on_progress: ProgressCallback = _IGNORE_PROGRESS,
) -> Iterator[tuple[T, R]]:
    """Yield (task, result) as tasks end. Run a task again if its process dies; raise PicstoreError if it dies twice."""
    pending = deque(tasks)
    for attempt in (1, 2):
        died: list[T] = []
        for task, outcome in as_engine(workers).run(function, pending, on_progress=on_progress):
            if isinstance(outcome, Died):
                if attempt == 2:
                    raise PicstoreError(f"a task died twice: {outcome}; free memory and run the command again")
                died.append(task)
            else:
                yield task, outcome
        pending = deque(died)
