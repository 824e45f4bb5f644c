"""The workers of a loader on a Ray cluster: actors that are started, awaited, lost and replaced.

``remote_sequence.py`` divides an epoch among the workers, and has the diagram.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import PicstoreError, UsageError, counted
from picstore.prepare.engine.ray import MAX_ATTEMPTS, cluster_resources, first_line, import_ray, join_cluster
from picstore.train.batching.spec import PipelineSpec
from picstore.train.order.spans import Span
from picstore.train.pipeline.own_threads import close_at_exit
from picstore.train.pipeline.remote_worker_main import RemoteMessage, RemoteWorker, versions
from picstore.train.pipeline.stats import Stats, StatsCounter

logger = logging.getLogger("picstore")

# Number of calls for batches to keep under way at each worker. A call takes 1 ms, making a batch 50 ms.
WINDOW = 4
# Seconds without any worker after which to warn, and after which to fail: a cloud takes minutes to start a node.
_WARNING_SECONDS, NO_WORKER_SECONDS = 10.0, 300.0
# Seconds without a ready worker before an error if workers keep failing to start. Ray takes 20 s to notice a lost node.
_FAILING_SECONDS = 60.0
# Seconds to wait after a worker has failed to start, before starting another.
_RETRY_SECONDS = 1.0
# Batches of all ranks together take at most 1 / _SHARE_OF_STORE of the cluster's object stores.
_SHARE_OF_STORE = 4


@dataclass(slots=True, eq=False)
class Task:
    """A span of batches for a worker to make, with the batches made so far, which are taken in order."""

    span: Span
    key: int = -1  # Number of the task's latest assignment to a worker, which knows the task by this number.
    worker: WorkerHandle | None = None
    taken: int = 0
    # For each batch that is made and not taken, the message, and Ray's reference to the batch's memory.
    made: deque[tuple[RemoteMessage | Exception, Any]] = field(default_factory=deque)
    # For each call under way, Ray's references to the message and to the memory of the batch to be made.
    calls: deque[tuple[Any, Any]] = field(default_factory=deque)
    losses: int = 0  # Number of workers lost since the task's previous batch was made.

    @property
    def left(self) -> int:
        """Number of the task's batches for which no worker has been called yet; 0 after an error."""
        if self.made and isinstance(self.made[-1][0], Exception):
            return 0
        return (self.span.count or 0) - self.taken - len(self.made) - len(self.calls)

    def abandon(self) -> None:
        """Take the task from its worker, so that another worker makes the remaining batches."""
        if self.worker is not None:
            self.worker.tasks.remove(self)
        self.worker = None
        self.calls.clear()


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker's Ray actor, tasks and statistics."""

    actor: Any
    opening: Any  # Ray's reference to the call of ``open``; None once the call has ended.
    tasks: list[Task] = field(default_factory=list)  # The task under way and the next task.
    stats: Stats = field(default_factory=Stats)  # the worker's latest statistics, already added to the trainer's

    @property
    def awaited(self) -> Any:
        """Ray's reference to the worker's oldest call under way; None if no call is under way."""
        if self.opening is not None:
            return self.opening
        return next((task.calls[0][0] for task in self.tasks if task.calls), None)

    @property
    def room(self) -> bool:
        """Whether the worker is ready and can take another task: it has none, or one with few batches to request."""
        return self.opening is None and (not self.tasks or (len(self.tasks) == 1 and self.tasks[0].left <= WINDOW))


class RemoteWorkers:
    """Workers of a loader on this process's Ray cluster; they live as long as this object.

    Args:
        count: number of workers of one rank, each on ``spec.resources.threads`` CPUs; None for all CPUs of the cluster.
        ranks: number of ranks that share the cluster's object stores.

    Attributes:
        count: number of workers; may be set, and takes effect when the next batch is requested.
        in_use: whether an iterator over batches uses the workers.
    """

    def __init__(self, spec: PipelineSpec, counter: StatsCounter, *, count: int | None, ranks: int = 1) -> None:
        self.ray = import_ray("engine='ray'")
        join_cluster()
        resources = cluster_resources()
        self.spec, self.counter = spec, counter
        self.count = count or max(1, int(resources.get("CPU", 1)) // spec.resources.threads)
        self.budget = int(resources.get("object_store_memory", 0)) // _SHARE_OF_STORE // ranks
        self.in_use = False
        self.members: list[WorkerHandle] = []
        self._pickled = self.ray.put(pickle_spec(spec))
        self._pid, self._closed = os.getpid(), False
        self._alone_since, self._warned = time.monotonic(), False
        # Failures to start workers: their number, the latest error, and the time at which to start another worker.
        self._failures, self._failure, self._retry = 0, "", 0.0
        self._finalizer = weakref.finalize(self, _kill, self.ray, self.members, self._pid)
        self._finalizer.atexit = False
        close_at_exit(self)

    @property
    def alive(self) -> bool:
        """Whether this process may use the workers: they are not closed, and this is not a fork."""
        return not self._closed and self._pid == os.getpid() and bool(self.ray.is_initialized())

    def adjust(self) -> None:
        """Start missing workers, and end surplus workers, those without tasks first."""
        options = {"num_cpus": self.spec.resources.threads, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        while len(self.members) < self.count and time.monotonic() >= self._retry and not self._closed:
            actor = self.ray.remote(**options)(RemoteWorker).remote()
            self.members.append(WorkerHandle(actor, actor.open.remote(versions(), self._pickled)))
        if self._closed:
            # ``close`` has run meanwhile, and may have missed the newest worker; a garbage collection can call it here.
            _kill(self.ray, self.members, self._pid)
        while len(self.members) > self.count:
            idle = [worker for worker in self.members if worker.opening is not None or not worker.tasks]
            self._drop((idle or self.members)[-1])

    def wait(self, seconds: float) -> list[WorkerHandle]:
        """Return the first worker that answers within ``seconds``, if any; for 0 seconds, all that have answered.

        Raise PicstoreError if the cluster has had no worker for too long.
        """
        awaited = {worker.awaited: worker for worker in self.members if worker.awaited is not None}
        self._check_alone()
        if not awaited:
            time.sleep(seconds)
            return []
        count = 1 if seconds else len(awaited)
        ready, _ = self.ray.wait(list(awaited), num_returns=count, timeout=seconds, fetch_local=False)
        if not self.alive:
            raise CancelledError
        return [awaited[reference] for reference in ready]

    def answer(self, worker: WorkerHandle) -> Any:
        """Return the answer of a worker to its oldest call, or None if the worker is lost.

        Raise PicstoreError if the call has failed, or if MAX_ATTEMPTS workers in a row were lost while making the same
        batch.
        """
        try:
            return self.ray.get(worker.awaited)
        except self.ray.exceptions.RayTaskError as error:
            raise PicstoreError(f"a remote worker failed: {error.cause!r}") from error
        except self.ray.exceptions.RayError as error:
            if not self.alive:
                raise CancelledError from error
            self._lose(worker, error)
            return None

    def open(self, worker: WorkerHandle, answer: Exception | None) -> None:
        """Note that a worker has opened the datasets and is ready, or raise the error that its ``open`` returned."""
        worker.opening = None
        self._failures = 0
        if answer is not None:
            raise type(answer)(f"a remote worker cannot make batches: {answer}") from answer

    def close(self) -> None:
        """End all workers, except in a fork; any thread may call this."""
        self._closed = True
        self._finalizer()

    def _lose(self, worker: WorkerHandle, error: Exception) -> None:
        task = next((task for task in worker.tasks if task.calls), None)
        starting = worker.opening is not None
        self._drop(worker)
        if starting:
            self._failures, self._failure = self._failures + 1, first_line(error)
            self._retry = time.monotonic() + _RETRY_SECONDS
        if task is not None:
            task.losses += 1
            if task.losses >= MAX_ATTEMPTS:
                batch = task.span.first + task.taken + len(task.made)
                raise PicstoreError(
                    f"batch {batch} of epoch {task.span.epoch} lost its worker {counted(task.losses, 'time')}, last by "
                    f"{first_line(error)}"
                ) from error

    def _drop(self, worker: WorkerHandle) -> None:
        self.members.remove(worker)
        for task in list(worker.tasks):
            task.abandon()
        self.ray.kill(worker.actor)

    def _check_alone(self) -> None:
        """Warn once if there has been no ready worker for _WARNING_SECONDS.

        Raise PicstoreError after NO_WORKER_SECONDS, or after _FAILING_SECONDS if workers keep failing to start.
        """
        if any(worker.opening is None for worker in self.members):
            self._alone_since, self._warned = time.monotonic(), False
            return
        alone = time.monotonic() - self._alone_since
        if self._failures >= MAX_ATTEMPTS and alone >= _FAILING_SECONDS:
            text = f"{counted(self._failures, 'remote worker', 'have')} ended before being ready"
            raise PicstoreError(f"{text}, the last by {self._failure}")
        if alone < (NO_WORKER_SECONDS if self._warned else _WARNING_SECONDS):
            return
        free = self.ray.available_resources().get("CPU", 0)
        text = f"there has been no remote worker for {alone:.0f} s: each takes {self.spec.resources.threads} CPUs"
        text += f", and {free:g} of the cluster's {cluster_resources().get('CPU', 0):g} are free"
        if self._warned:
            raise PicstoreError(f"{text}; add nodes, end other jobs, or give fewer threads")
        self._warned = True
        logger.warning("%s; waiting up to %d s", text, NO_WORKER_SECONDS)


def pickle_spec(spec: PipelineSpec) -> bytes:
    """Pickle a specification, functions of the main program too; raise UsageError if ``collate`` cannot be pickled."""
    dumps = import_ray("engine='ray'").cloudpickle.dumps
    try:
        dumps(spec.collate)
    except Exception as error:  # Pickle and __reduce__ may raise any error.
        text = f"remote workers cannot have collate: {first_line(error)}"
        raise UsageError(f"{text}; give a function of a module that all nodes have") from error
    pickled: bytes = dumps(spec)
    return pickled


def _kill(ray: Any, members: list[WorkerHandle], parent: int) -> None:
    """End the workers. ``ray`` is an argument because a garbage collection may call this during Ray's import."""
    with contextlib.suppress(IndexError):  # Another thread may remove the last of ``members`` meanwhile.
        while members:
            worker = members.pop()
            if parent == os.getpid() and ray.is_initialized():
                ray.kill(worker.actor)
