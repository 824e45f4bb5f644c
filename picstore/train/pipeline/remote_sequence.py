"""The sequence of batches that workers on a Ray cluster make: the trainer hands out spans, and takes batches in order.

    trainer                          a worker, an actor of ``remote_worker_main.py``
    open(versions, spec) ─────────→  opens the datasets
    begin(key, order, span) ──────→  starts a pipeline, before the last batches of the worker's previous span
    make(key) ────────────────────→  takes a batch from the pipeline; at most WINDOW calls of a worker are under way
              ←────────────────────  RemoteMessage, in the reply
              ←────────────────────  memory of the images, in the object store of the worker's node; Ray brings it over

The trainer divides the steps into spans (``order/spans.py``) and gives each worker a span, and the next span before the
first ends. It has no thread for this, but handles answers whenever a batch is asked for. If a worker or node is lost,
batches in the memory of other nodes stay, and other workers make the rest, first the span that the trainer waits for.
The memory of a batch belongs to Ray until the batch is dropped: tensors lie in this memory, and nothing is copied.
"""

from __future__ import annotations

import pickle
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import Mapping, map_array
from picstore.train.order.spans import Span, SpanCutter, steps_of_span
from picstore.train.pipeline.batch_forms import FORMS
from picstore.train.pipeline.remote_worker_main import RemoteMessage
from picstore.train.pipeline.remote_workers import WINDOW, RemoteWorkers, Task, WorkerHandle

PULLED = 3  # Number of batches that Ray brings to the trainer's node before the trainer asks for them.
# Seconds to wait for a worker's answer before checking whether there has been no worker for too long.
_WAIT_SECONDS = 1.0
# Guess of the bytes of decoded pixels for each byte of a JPEG, used before the first batch if image sizes differ.
_PIXELS_OF_BYTE = 12


class RemoteSequence:
    """Endless sequence of batches, in order, made by remote workers, which ``close`` ends if they are ``owned``."""

    def __init__(self, workers: RemoteWorkers, span: Span, *, owned: bool = False) -> None:
        self._workers, self._cutter, self._owned = workers, SpanCutter(span), owned
        self._tasks: deque[Task] = deque()
        self._order: Any = None  # Ray's reference to the batches' order; None before the first ``receive``.
        self._keys = self._steps = 0
        self._size = 0.0  # mean size of a batch in bytes; a guess before the first batch
        self._made = 0
        self._closed = False

    def receive(self) -> HostBatch | None:
        """Return the next batch.

        Raises:
            PicstoreError: making this batch has failed, workers keep failing, or there has been no worker for too long.
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
        """End the sequence, and make the workers ready for another sequence."""
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
        span = self._cutter.rest
        self._steps, stored = steps_of_span(span, spec.sources)
        self._size = _guess_size(span, spec, stored)
        self._order = self._workers.ray.put(span.order)

    def _proceed(self, seconds: float) -> None:
        """Handle workers' answers, waiting up to ``seconds`` for an answer, and give workers new tasks and calls."""
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

    def _note(self, worker: WorkerHandle, answer: RemoteMessage | Exception) -> None:
        """Add a worker's answer, which is a batch or the error that prevented a batch, to the worker's task."""
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

    def _take(self, task: Task) -> HostBatch | None:
        """Return a task's next batch, or raise its error; return None if the batch's memory was lost with a node."""
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
        arrays = map_images(partial(map_array, memory), message.arrays)
        return message.batch.put_together(arrays)

    def _pull(self) -> None:
        """Let Ray copy the next PULLED batches, as far as they are made, to this node in advance."""
        ahead = [reference for task in list(self._tasks)[:PULLED] for _, reference in list(task.made)[:PULLED]][:PULLED]
        if ahead:
            self._workers.ray.wait(ahead, num_returns=len(ahead), timeout=0, fetch_local=True)

    def _assign(self) -> None:
        """Give tasks to workers with room, idle ones first; the first task may take its worker from a later task."""
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

    def _next_task(self) -> Task | None:
        """Return the task of making the sequence's next span of batches, or None if enough tasks are under way."""
        workers = self._workers.count
        if len(self._tasks) > 2 * workers:
            return None
        steps = min(self._steps, int(self._workers.budget / self._size / (workers + 1)))
        self._tasks.append(Task(self._cutter.cut(steps, workers)))
        return self._tasks[-1]

    def _begin(self, worker: WorkerHandle, task: Task) -> None:
        self._keys += 1
        task.key, task.worker = self._keys, worker
        span = task.span.after(task.taken + len(task.made))
        kept = [each.key for each in worker.tasks]
        worker.tasks.append(task)
        worker.actor.begin.remote(task.key, kept, self._order, span.epoch, span.first, span.count)

    def _ask(self) -> None:
        """Keep WINDOW calls for batches under way at each worker, but fewer if batches exceed the budget of memory.

        The first task's calls are made in any case, because the consumer waits for their batches.
        """
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
    """Memory of a batch in Ray's store, writable here because only this trainer reads the batch."""

    def __init__(self, block: Any) -> None:
        super().__init__(block.ctypes.data, block.nbytes)
        self._block = block  # Ray's memory, which lives as long as arrays in it refer to this mapping.


def _guess_size(span: Span, spec: PipelineSpec, stored: float) -> float:
    """Guess the bytes of a batch's images before a batch is made, given the ``stored`` bytes of a batch's records."""
    if not FORMS[spec.output.form].decoded:
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
