"""Pipelines on a Ray cluster: actors make spans of steps, whose batches the trainer takes in order.

    trainer                          a worker, an actor of ``remote_main.py``
    open(versions, spec) ─────────→  opens the data sets
    begin(key, order, span) ──────→  starts a pipeline, ahead of the last batches of its span before
    make(key) ────────────────────→  takes a batch of the pipeline; at most WINDOW calls a worker are under way
              ←────────────────────  RemoteMessage, in the reply
              ←────────────────────  memory of the images, in the object store of the worker's node; Ray brings it over

The trainer divides the steps into spans (``order/spans.py``) and gives each worker one, and the next before its end. It
holds no thread: what has happened since is seen to whenever a batch is asked for. Of a worker or node that is lost,
the batches in other nodes' memory stay, and the rest of its span is made by another, first of all what the trainer
waits for. Memory of a batch is Ray's until the batch is dropped: tensors lie in it, and nothing is copied.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import weakref
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.engine.ray import MAX_ATTEMPTS, cluster_resources, first_line, import_ray, join_cluster
from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import Mapping
from picstore.train.order.spans import Span, steps_of_span
from picstore.train.pipeline.at_exit import close_at_exit
from picstore.train.pipeline.process import map_array
from picstore.train.pipeline.remote_main import RemoteMessage, RemoteWorker, versions
from picstore.train.pipeline.stats import Stats, StatsCounter

logger = logging.getLogger("picstore")

WINDOW = 4  # calls of a worker that are under way: a call costs 1 ms, a batch 50
PULLED = 3  # batches that come to the trainer's node before they are asked for
NO_WORKER_SECONDS = 300.0  # without any worker, before that is an error: nodes of clouds take minutes to come
_WARNING_SECONDS = 10.0
_FAILING_SECONDS = 60.0  # the same where workers end as they start: Ray takes 20 to notice that a node is lost
_RETRY_SECONDS = 1.0  # from a worker that ended as it started to the next
_WAIT_SECONDS = 1.0  # for an answer, before the time without workers is looked at again
_SHARE_OF_STORE = 4  # of the cluster's object stores, all ranks together fill a quarter
_PIXELS_OF_BYTE = 12  # bytes of pixels for each of a JPEG; for images of any size, until the first are made


@dataclass(slots=True, eq=False)
class _Task:
    """A span under way; its batches are taken in order."""

    span: Span
    key: int = -1  # of its assignment to a worker
    worker: _Worker | None = None
    taken: int = 0
    made: deque[tuple[RemoteMessage | Exception, Any]] = field(default_factory=deque)  # with the reference of memory
    calls: deque[tuple[Any, Any]] = field(default_factory=deque)  # under way: references of the message and of memory
    losses: int = 0  # of workers, since a batch was made

    @property
    def left(self) -> int:
        """Batches that have not been asked for; none after an error."""
        if self.made and isinstance(self.made[-1][0], Exception):
            return 0
        return (self.span.count or 0) - self.taken - len(self.made) - len(self.calls)

    def abandon(self) -> None:
        """Have what is not made be made by another worker."""
        if self.worker is not None:
            self.worker.tasks.remove(self)
        self.worker = None
        self.calls.clear()


@dataclass(slots=True, eq=False)
class _Worker:
    actor: Any
    opening: Any  # reference of the call, until it has ended
    tasks: list[_Task] = field(default_factory=list)  # the one that it makes, and the next
    stats: Stats = field(default_factory=Stats)  # as far as they are in the trainer's counter

    @property
    def awaited(self) -> Any:
        """The reference of the oldest call under way; None for none."""
        if self.opening is not None:
            return self.opening
        return next((task.calls[0][0] for task in self.tasks if task.calls), None)

    @property
    def room(self) -> bool:
        """Whether another task can be given to it."""
        return self.opening is None and (not self.tasks or (len(self.tasks) == 1 and self.tasks[0].left <= WINDOW))


class RemoteWorkers:
    """The workers of a loader on the cluster that this process is connected to; they live as long as this object.

    Args:
        count: workers of one rank, of ``spec.resources.threads`` CPUs each; None for all CPUs of the cluster.
        ranks: that share the object stores.

    Attributes:
        count: which can be set at any time; the next call for a batch adds and takes away workers.
        in_use: whether a sequence is being made.
    """

    def __init__(self, spec: PipelineSpec, counter: StatsCounter, *, count: int | None, ranks: int = 1) -> None:
        self.ray = import_ray("engine='ray'")
        join_cluster()
        resources = cluster_resources()
        self.spec, self.counter = spec, counter
        self.count = count or max(1, int(resources.get("CPU", 1)) // spec.resources.threads)
        self.budget = int(resources.get("object_store_memory", 0)) // _SHARE_OF_STORE // ranks
        self.in_use = False
        self.members: list[_Worker] = []
        self._pickled = self.ray.put(pickle_spec(spec))
        self._pid, self._closed = os.getpid(), False
        self._alone_since, self._warned = time.monotonic(), False
        self._failures, self._failure, self._retry = 0, "", 0.0  # of starting workers; the last; when to start others
        self._finalizer = weakref.finalize(self, _kill, self.members, self._pid)
        self._finalizer.atexit = False
        close_at_exit(self)

    @property
    def alive(self) -> bool:
        """Whether this process may still use the workers."""
        return not self._closed and self._pid == os.getpid() and bool(self.ray.is_initialized())

    def adjust(self) -> None:
        """Start workers that are missing, and end those that are too many: first those that have least to lose."""
        options = {"num_cpus": self.spec.resources.threads, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        while len(self.members) < self.count and time.monotonic() >= self._retry:
            actor = self.ray.remote(**options)(RemoteWorker).remote()
            self.members.append(_Worker(actor, actor.open.remote(versions(), self._pickled)))
        while len(self.members) > self.count:
            idle = [worker for worker in self.members if worker.opening is not None or not worker.tasks]
            self._drop((idle or self.members)[-1])

    def wait(self, seconds: float) -> list[_Worker]:
        """Wait for answers of workers; without time, list all that have answered.

        PicstoreError after a time without any worker.
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

    def answer(self, worker: _Worker) -> Any:
        """The answer of a worker to its oldest call; None if the worker is lost.

        PicstoreError for a bug, or if workers are lost again and again.
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

    def open(self, worker: _Worker, answer: Exception | None) -> None:
        """Note that a worker is ready, or raise why it cannot be."""
        worker.opening = None
        self._failures = 0
        if answer is not None:
            raise type(answer)(f"a remote worker cannot make batches: {answer}") from answer

    def close(self) -> None:
        """End all workers; from any thread, and not in a fork."""
        self._closed = True
        self._finalizer()

    def _lose(self, worker: _Worker, error: Exception) -> None:
        """Drop a worker that has ended; what it was to make is to be made by another."""
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
                    f"batch {batch} of epoch {task.span.epoch} lost its worker {task.losses} times, last by "
                    f"{first_line(error)}"
                ) from error

    def _drop(self, worker: _Worker) -> None:
        self.members.remove(worker)
        for task in list(worker.tasks):
            task.abandon()
        self.ray.kill(worker.actor)

    def _check_alone(self) -> None:
        """Warn, and in the end raise PicstoreError, while there is no worker."""
        if any(worker.opening is None for worker in self.members):
            self._alone_since, self._warned = time.monotonic(), False
            return
        alone = time.monotonic() - self._alone_since
        if self._failures >= MAX_ATTEMPTS and alone >= _FAILING_SECONDS:
            text = f"{self._failures} remote workers have ended before they were ready"
            raise PicstoreError(f"{text}, the last by {self._failure}")
        if alone < (NO_WORKER_SECONDS if self._warned else _WARNING_SECONDS):
            return
        free = self.ray.available_resources().get("CPU", 0)
        text = f"there has been no remote worker for {alone:.0f} s: each takes {self.spec.resources.threads} CPUs"
        text += f", and {free:g} of the cluster's {cluster_resources().get('CPU', 0):g} are free"
        if alone >= NO_WORKER_SECONDS:
            raise PicstoreError(f"{text}; add nodes, end other jobs, or give fewer threads")
        self._warned = True
        logger.warning("%s; waiting up to %d s", text, NO_WORKER_SECONDS)


class RemoteSequence:
    """The batches of a span without end, which the first ``receive`` begins; ``owned`` workers end with it."""

    def __init__(self, workers: RemoteWorkers, span: Span, *, owned: bool = False) -> None:
        self._workers, self._rest, self._owned = workers, span, owned
        self._tasks: deque[_Task] = deque()
        self._order: Any = None  # a reference
        self._cuts = self._keys = self._steps = 0
        self._size = 0.0  # bytes of a batch's memory, a guess until one is made
        self._made = 0
        self._closed = False

    def receive(self) -> HostBatch | None:
        """The next batch.

        Raises:
            PicstoreError: an error of a pipeline, in its batch's turn; workers that fail, or none for too long.
            CancelledError: the workers were ended, or this process was forked.
        """
        if self._order is None:
            self._begin_sequence()
        seconds = 0.0
        while not self._closed and self._workers.alive:
            self._proceed(seconds)
            if not self._tasks or not self._tasks[0].made:
                seconds = _WAIT_SECONDS
            elif (batch := self._take(self._tasks[0])) is not None:
                return batch
        raise CancelledError

    def close(self) -> None:
        """End the sequence, and make the workers ready for another."""
        if self._closed or self._order is None:
            return
        self._closed, workers = True, self._workers
        if workers.alive:
            workers.in_use = False
            for task in self._tasks:
                if task.worker is not None:
                    task.worker.actor.end.remote()
                task.abandon()
            if self._owned:
                workers.close()
        self._tasks.clear()

    def _begin_sequence(self) -> None:
        spec, self._workers.in_use = self._workers.spec, True
        self._steps, stored = steps_of_span(self._rest, spec.sources)
        self._size = _guess_size(self._rest, spec, stored)
        self._order = self._workers.ray.put(self._rest.order)

    def _proceed(self, seconds: float) -> None:
        """See to the answers of workers, waiting for one if there is time, and give them what is to be done next."""
        workers = self._workers
        workers.adjust()
        for worker in workers.wait(seconds):
            opening = worker.opening is not None
            answer = workers.answer(worker)
            if worker not in workers.members:
                continue
            if opening:
                workers.open(worker, answer)
            else:
                self._note(worker, pickle.loads(answer))  # noqa: S301 - of a worker, as all that Ray brings
        self._assign()
        self._ask()

    def _note(self, worker: _Worker, answer: RemoteMessage | Exception) -> None:
        """Note a batch that was made, or an error in its place."""
        task = next(task for task in worker.tasks if task.calls)
        task.made.append((answer, task.calls.popleft()[1]))
        task.losses = 0
        if isinstance(answer, RemoteMessage):
            self._workers.counter.add(**asdict(answer.stats - worker.stats))
            worker.stats = answer.stats
            self._size = (self._made * self._size + answer.size) / (self._made + 1)
            self._made += 1
        if not task.left and not task.calls:
            task.abandon()

    def _take(self, task: _Task) -> HostBatch | None:
        """Take the first batch of a task, or its error; None if its memory was lost with a node."""
        message, reference = task.made[0]
        if isinstance(message, Exception):
            raise message
        try:
            block = self._workers.ray.get(reference)
        except self._workers.ray.exceptions.RayError:
            task.made.clear()
            task.abandon()
            return None
        task.made.popleft()
        task.taken += 1
        if task.taken == task.span.count:
            self._tasks.popleft()
        self._pull()
        memory = np.asarray(_WritableBlock(block))
        images = map_images(partial(map_array, memory), message.images)
        return replace(message.batch, images=images)

    def _pull(self) -> None:
        """Have Ray bring the next batches to this node."""
        ahead = [reference for task in list(self._tasks)[:PULLED] for _, reference in list(task.made)[:PULLED]][:PULLED]
        if ahead:
            self._workers.ray.wait(ahead, num_returns=len(ahead), timeout=0, fetch_local=True)

    def _assign(self) -> None:
        """Give tasks to workers that have room, those without any first; what the trainer waits for before all."""
        with_room = [worker for worker in self._workers.members if worker.room]
        for worker in sorted(with_room, key=lambda worker: len(worker.tasks)):
            task = next((task for task in self._tasks if task.worker is None and task.left), None) or self._next_task()
            if task is None:
                break
            self._begin(worker, task)
        first = self._tasks[0] if self._tasks else None
        if first is not None and first.left and first.worker is None:
            for task in reversed(self._tasks):
                if task.worker is not None:
                    worker = task.worker
                    task.abandon()
                    self._begin(worker, first)
                    break

    def _next_task(self) -> _Task | None:
        """Cut off the next span, shorter ones at first, so that workers end one after the other; None at the bound."""
        workers = self._workers.count
        if len(self._tasks) > 2 * workers:
            return None
        steps = min(self._steps, int(self._workers.budget / self._size / (workers + 1)))
        self._cuts += 1
        span, self._rest = self._rest.cut(max(1, steps * min(self._cuts, workers) // workers))
        self._tasks.append(_Task(span))
        return self._tasks[-1]

    def _begin(self, worker: _Worker, task: _Task) -> None:
        self._keys += 1
        task.key, task.worker = self._keys, worker
        span = task.span.after(task.taken + len(task.made))
        kept = [each.key for each in worker.tasks]
        worker.tasks.append(task)
        worker.actor.begin.remote(task.key, kept, self._order, span.epoch, span.first, span.count)

    def _ask(self) -> None:
        """Keep WINDOW calls of each worker under way, within the budget of bytes but for the first task."""
        held = sum(len(task.made) + len(task.calls) for task in self._tasks)
        most = self._workers.budget / self._size
        for task in self._tasks:
            worker = task.worker
            if worker is None or any(earlier.left for earlier in worker.tasks[: worker.tasks.index(task)]):
                continue
            while task.left and len(task.calls) < WINDOW and (task is self._tasks[0] or held < most):
                task.calls.append(tuple(worker.actor.make.options(num_returns=2).remote(task.key)))
                held += 1


class _WritableBlock(Mapping):
    """The memory of a batch in Ray's store, which is this trainer's alone: nothing else reads it any more."""

    def __init__(self, block: Any) -> None:
        super().__init__(block.ctypes.data, block.nbytes)
        self._block = block  # until the last array of it goes


def pickle_spec(spec: PipelineSpec) -> bytes:
    """Pickle a specification; functions of the main program go by value. UsageError names what cannot be pickled."""
    dumps = import_ray("engine='ray'").cloudpickle.dumps
    try:
        dumps(spec.collate)
    except Exception as error:  # pickle raises any, and so may __reduce__
        text = f"remote workers cannot have collate: {first_line(error)}"
        raise UsageError(f"{text}; give a function of a module that all nodes have") from error
    pickled: bytes = dumps(spec)
    return pickled


def _guess_size(span: Span, spec: PipelineSpec, stored: float) -> float:
    """Guess the bytes of a batch's images before one is made, of ``stored`` bytes of records."""
    if spec.output.form != "pixels":
        return stored
    most = 0
    for plan in [plan for source in spec.sources for plan in source.plans]:
        pixels = 0
        for group in plan.groups:
            if group.size is None:
                return _PIXELS_OF_BYTE * stored
            pixels += group.count * group.size[0] * group.size[1]
        most = max(most, pixels)
    samples = sum(len(wanted.samples) for wanted in next(iter(span(spec.sources))))
    return float(samples * 3 * most * spec.output.numpy_dtype.itemsize)


def _kill(members: list[_Worker], parent: int) -> None:
    ray = import_ray("engine='ray'")
    if parent == os.getpid() and ray.is_initialized():
        for worker in members:
            ray.kill(worker.actor)
    members.clear()
