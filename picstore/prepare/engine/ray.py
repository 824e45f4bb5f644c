"""Ray engine, which runs tasks as Ray tasks on a cluster; remote workers of a loader connect to a cluster here too.

Only tasks and results pass through Ray; tasks read and write at locations that all nodes see.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from picstore.display.progress import ProgressCallback
from picstore.errors import PicstoreError, missing_extra
from picstore.prepare.engine.worker_processes import Died, R, T

# Largest number of attempts to run a task whose worker or node is lost, because clouds take nodes away.
MAX_ATTEMPTS = 4

# Name of an environment variable of Ray; if its value is "0", Ray takes 127.0.0.1 as this machine's address.
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Engine that runs at most ``workers`` tasks at a time on the cluster to which this process is connected."""

    workers: int

    def run(
        self,
        function: Callable[[T, ProgressCallback], R],
        tasks: deque[T],
        *,
        on_progress: ProgressCallback = lambda _: None,
    ) -> Iterator[tuple[T, R | Died]]:
        """Run tasks as :func:`picstore.prepare.engine.worker_processes.Engine.run` says.

        A task that loses its worker runs on another worker. Raise PicstoreError if a task loses ``MAX_ATTEMPTS``
        workers, or raises an unexpected error. ``on_progress`` is called once per task, at its end.
        """
        ray = import_ray()
        remote = ray.remote(num_cpus=1, max_retries=0)(run_task)
        folder = str(Path.cwd())
        waiting: dict[Any, tuple[T, int]] = {}
        try:
            while tasks or waiting:
                while tasks and len(waiting) < self.workers:
                    task = tasks.popleft()
                    waiting[remote.remote(function, task, folder)] = task, 1
                ended = ray.wait(list(waiting), num_returns=1)[0][0]
                task, attempt = waiting.pop(ended)
                try:
                    outcome, count, failed = ray.get(ended)
                except ray.exceptions.RayTaskError as error:
                    raise PicstoreError(f"a task failed on the cluster: {error.cause!r}") from error
                except ray.exceptions.RayError as error:
                    if attempt == MAX_ATTEMPTS:
                        raise PicstoreError(
                            f"a task lost its worker {attempt} times, last by {first_line(error)}"
                        ) from error
                    waiting[remote.remote(function, task, folder)] = task, attempt + 1
                    continue
                if failed:
                    raise outcome
                on_progress(count)
                yield task, outcome
        finally:
            for reference in waiting:
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)


def run_task(function: Callable[[T, ProgressCallback], R], task: T, folder: str) -> tuple[R | Exception, int, bool]:
    """Run a task on a node; return the task's result or error, the sum of its progress counts, and whether it failed.

    The task runs in ``folder``, the working directory of the caller of :meth:`RayEngine.run`, if the node has this
    folder, because sources may be relative paths.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)
    counts: list[int] = []
    try:
        return function(task, counts.append), sum(counts), False
    except (PicstoreError, OSError) as error:
        return error, 0, True


def join_cluster() -> bool:
    """Connect this process for its lifetime to a cluster, as :func:`connect` does; return False if it already was."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without this variable, Ray prints a warning about a future change.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = import_ray()
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.CRITICAL}
    with _reaching_cluster():
        services: Any = importlib.import_module("ray._private.services")
        if services.canonicalize_bootstrap_address(None) is not None:
            ray.init(**options)
            return True
        with _on_loopback():
            ray.init(address="local", include_dashboard=False, **options)
    _require_loopback()
    return True


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let clusters that Ray starts in the block listen on 127.0.0.1 only, as they do on macOS and Windows.

    On Linux, ``ray.init`` otherwise replaces 127.0.0.1 by the machine's address, and all servers listen on every
    interface. Ray's constant is set too, because Ray may have read the environment variable before.
    """
    from ray._private import ray_constants

    given, before = os.environ.get(_CLUSTERS), ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[_CLUSTERS] = "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[_CLUSTERS]
        if given is not None:
            os.environ[_CLUSTERS] = given


def _require_loopback() -> None:
    """Stop the cluster that this process started, and raise PicstoreError, if its address is not 127.0.0.1."""
    ray = import_ray()
    if (address := ray.util.get_node_ip_address()) != "127.0.0.1":
        ray.shutdown()
        raise PicstoreError(
            f"this release of Ray listens on {address}, not on 127.0.0.1 alone; start a cluster yourself, behind a "
            "firewall, by `ray start --head`, and name it in RAY_ADDRESS"
        )


def cluster_resources() -> dict[str, float]:
    """Return the amount of each of the cluster's resources by name, such as ``"CPU"`` or ``"memory"`` (in bytes)."""
    with _reaching_cluster():
        return dict(import_ray().cluster_resources())


@contextlib.contextmanager
def _reaching_cluster() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Ray may raise an exception of any type when it connects or starts.
        raise PicstoreError(f"the Ray cluster cannot be reached; check RAY_ADDRESS: {first_line(error)}") from error


@contextlib.contextmanager
def connect(workers: int | None = None) -> Iterator[RayEngine]:
    """Connect to the cluster that ``RAY_ADDRESS`` names, else to a cluster on this machine, else start a cluster.

    ``workers`` is the largest number of concurrent tasks; None for the cluster's cores. Raise MissingDependency if Ray
    is not installed, PicstoreError if the cluster cannot be reached.
    """
    connecting = join_cluster()
    cores = int(cluster_resources().get("CPU", 1))
    with contextlib.ExitStack() as stack:
        if connecting:
            # Discard ``sys.stdout`` while connected, because a thread of Ray prints events of the nodes there.
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
            stack.callback(import_ray().shutdown)
        yield RayEngine(workers or max(1, cores))


def import_ray(of: str = "--engine ray") -> Any:
    """Import Ray; if it is not installed, raise MissingDependency with the message "<of> needs Ray"."""
    try:
        import ray.exceptions
    except ImportError as error:
        raise missing_extra(f"{of} needs Ray", "ray") from error
    return ray


def first_line(error: Exception) -> str:
    """Return a string with the type of an error that Ray raised and the first line of the error's message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
