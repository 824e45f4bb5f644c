"""The engine that runs tasks on a cluster, by Ray Core: one Ray task each, their results collected here.

Nothing but tasks and results passes through Ray: rows are read from and written to places that all nodes see.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from picstore.errors import MissingDependency, PicstoreError
from picstore.prepare.engine.processes import Died, R, Report, T

_ATTEMPTS = 4  # of a task whose worker or node is lost each time; machines that may be taken away are


@dataclass(frozen=True, slots=True)
class Ray:
    """A cluster that this process is connected to; at most ``workers`` tasks are given to it at a time."""

    workers: int

    def run(
        self, function: Callable[[T, Report], R], tasks: deque[T], *, report: Report = lambda _: None
    ) -> Iterator[tuple[T, R | Died]]:
        """As :func:`picstore.prepare.engine.processes.run`; a task whose worker is lost runs again, elsewhere.

        ``report`` is called when a task has ended, with all that it reported.

        Raises:
            PicstoreError: a task lost its worker again and again, or failed in a way that no task should.
        """
        ray = _ray()
        remote = ray.remote(num_cpus=1, max_retries=0)(perform)
        folder = str(Path.cwd())
        waiting: dict[Any, tuple[T, int]] = {}
        try:
            while tasks or waiting:
                while tasks and len(waiting) < self.workers:
                    task = tasks.popleft()
                    waiting[remote.remote(function, task, folder)] = task, 1
                ready = ray.wait(list(waiting), num_returns=1)[0][0]
                task, attempt = waiting.pop(ready)
                try:
                    outcome, count, failed = ray.get(ready)
                except ray.exceptions.RayTaskError as error:
                    raise PicstoreError(f"a task failed on the cluster: {error.cause!r}") from error
                except ray.exceptions.RayError as error:
                    if attempt == _ATTEMPTS:
                        raise PicstoreError(
                            f"a task lost its worker {attempt} times, last by {_line(error)}"
                        ) from error
                    waiting[remote.remote(function, task, folder)] = task, attempt + 1
                    continue
                if failed:
                    raise outcome
                report(count)
                yield task, outcome
        finally:
            for reference in waiting:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)


def perform(function: Callable[[T, Report], R], task: T, folder: str) -> tuple[R | Exception, int, bool]:
    """What runs on the cluster: a task's result or error, what it reported, and whether it is an error.

    It runs in the driver's working directory where the node has it, as sources may be relative paths.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)
    counts: list[int] = []
    try:
        return function(task, counts.append), sum(counts), False
    except (PicstoreError, OSError) as error:
        return error, 0, True


@contextlib.contextmanager
def cluster(workers: int | None = None) -> Iterator[Ray]:
    """Connect to the cluster of ``RAY_ADDRESS``, or one that runs on this machine, or begin one here.

    Args:
        workers: tasks at a time; None for one a core of the cluster.

    Raises:
        MissingDependency: Ray is not installed.
        PicstoreError: the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of what it will do one day
    ray = _ray()
    ours = not ray.is_initialized()
    try:
        if ours:
            ray.init(
                include_dashboard=False, log_to_driver=False, configure_logging=False, logging_level=logging.CRITICAL
            )
        cores = int(ray.cluster_resources().get("CPU", 1))
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise PicstoreError(f"the Ray cluster cannot be reached; check RAY_ADDRESS: {_line(error)}") from error
    with contextlib.ExitStack() as stack:
        if ours:
            # A thread of Ray prints there whatever happens to nodes, between the results of our command.
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
            stack.callback(ray.shutdown)
        yield Ray(workers or max(1, cores))


def _ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependency("--engine ray needs Ray: pip install 'picstore[ray]'") from error
    module: ModuleType = ray
    return module


def _line(error: Exception) -> str:
    """The first line of an error of Ray, which writes many."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
