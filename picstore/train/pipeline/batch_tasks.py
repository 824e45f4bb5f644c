"""The tasks of a batch that threads fill: calls with one lock for all of them, and one future for the batch.

A future for each task, with its condition and its callback, took 30 µs of Python's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from picstore.errors import Damage
from picstore.train.batching.host_batch import HostBatch
from picstore.train.pipeline.thread_pool import Call


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
