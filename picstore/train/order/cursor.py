"""Position of a loader: the next batch, in the loader's own process and in the workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.utils.data import get_worker_info

from picstore.train.order.shared_array import SharedIntegers
from picstore.train.order.state_checks import check_position

_MAX_WORKERS = 1024  # maximum number of workers of a DataLoader


@dataclass(frozen=True, slots=True)
class Worker:
    """Index ``number`` of a process among the ``count`` workers of a DataLoader; both are 0 in any other process."""

    number: int = 0
    count: int = 0

    @classmethod
    def current(cls) -> Worker:
        """Return the current process's index among the workers, and the number of workers."""
        info = get_worker_info()
        return cls() if info is None else cls(info.id, info.num_workers)

    @property
    def step(self) -> int:
        """Distance between two consecutive batches of this process: the number of workers; 1 outside of workers."""
        return max(1, self.count)


class EpochCursor:
    """Next batch of a loader, as an epoch and the index of a batch in the epoch.

    A DataLoader's workers are copies of the loader, so each worker keeps its position in memory that all processes
    share. Worker w of n makes the batches w, w + n, … of an epoch, because a DataLoader asks its workers in turn.

    Args:
        length: function from an epoch to its number of batches, or to None if the epoch has no end.
        whole: whether the iteration after one that was broken off begins the next epoch rather than continuing with the
            next batch. If epochs end, workers always begin the next epoch, because they are ahead of the batches that
            the caller has taken.

    Attributes:
        loads: number of states that were loaded. Iterators that began before the latest load are outdated.
    """

    def __init__(self, length: Callable[[int], int | None], *, whole: bool) -> None:
        self._length, self._whole, self._resume, self.loads = length, whole, False, 0
        # Start position of the first iteration after ``move_to``; None before that iteration and from the second on.
        self._first: tuple[int, int] | None = None
        # Start of the first iteration after ``move_to``, if it was dropped after at most one batch; otherwise None.
        self._peeked: tuple[int, int] | None = None
        # Start position that ``set_epoch`` gave to the next iteration; iterators still in use do not change it.
        self._named: tuple[int, int] | None = None
        # Epoch of the loader minus the training loop's number for it; None from loading a state until ``follow_epoch``.
        self._offset: int | None = 0
        self._shared = SharedIntegers((_MAX_WORKERS, 2))  # epoch and batch of each worker
        self._epoch = self._batch = 0
        # Position that this process most recently gave to worker 0 in the shared memory; worker 0 changes it there.
        self._published = [0, 0]
        # DataLoader's worker that has set ``_epoch`` and ``_batch``; ``Worker()`` if no worker has.
        self._owner = Worker()
        self.move_to(0, 0)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and index of the batch that follows the last batch taken in this process."""
        worker = Worker.current()
        if worker.count and worker != self._owner:  # The worker has not begun to iterate.
            epoch, batch = self._shared.values[worker.number].tolist()
            return epoch, batch
        return self._epoch, self._batch

    @property
    def in_workers(self) -> bool:
        """Whether DataLoader workers have moved on since this process set their positions; always False in a worker."""
        return not Worker.current().count and bool((self._shared.values[0] != self._published).any())

    def load(self, epoch: int, batch: int) -> None:
        """Move to the position of a state; :meth:`follow_epoch` then counts from the state's epoch."""
        self.move_to(epoch, batch)
        self._offset, self.loads = None, self.loads + 1

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin ``epoch``, or continue in the middle of ``epoch`` if it would do so anyway.

        Raise UsageError unless ``epoch`` is an integer from 0 to 2**42.
        """
        (epoch,) = check_position(epoch=epoch)
        resumed = (self._epoch, self._batch) if self._resume else self._peeked
        if resumed is None or epoch != resumed[0] or self.in_workers:
            resumed = epoch, 0
        self.move_to(*resumed)
        self._named = self._epoch, self._batch

    def follow_epoch(self, number: int) -> None:
        """Make the next iteration begin epoch ``number``, as the caller counts epochs.

        The first call after a state was loaded only tells the caller's number for the state's epoch; it moves nothing.
        """
        (number,) = check_position(epoch=number)
        if self._offset is None:
            self._offset = self._epoch - number
        else:
            self.set_epoch(number + self._offset)

    def move_to(self, epoch: int, batch: int) -> None:
        """Make the next iteration begin at a position; in a worker, only the iteration of this worker."""
        worker = Worker.current()
        if not worker.count and self._is_over(epoch, batch):
            epoch, batch = epoch + 1, 0
        self._epoch, self._batch, self._resume, self._owner = epoch, batch, True, worker
        self._first = self._peeked = self._named = None
        if worker.count:
            self._shared.values[worker.number] = epoch, batch
        else:
            self._publish(epoch, batch)

    def start_iteration(self, worker: Worker) -> tuple[int, int]:
        """Begin an iteration, and return the epoch and index of its first batch."""
        if worker.count:
            self._epoch, self._batch = self._shared.values[worker.number].tolist()
            if self._length(self._epoch) is not None:
                self._shared.values[worker.number] = self._epoch + 1, worker.number
        elif (start := self._named or self._peeked) is not None:
            self._epoch, self._batch = start
        elif self._whole and self._batch and not self._resume:
            self._epoch, self._batch = self._epoch + 1, 0
        self._first = (self._epoch, self._batch) if self._resume else None
        self._resume, self._peeked, self._named, self._owner = False, None, None, worker
        return self._epoch, self._batch

    def end_early(self, epoch: int, first: int) -> None:
        """Record that an iteration, begun in this process at batch ``first`` of ``epoch``, was dropped before its end.

        If it was the first since ``move_to`` and gave at most one batch, the next iteration begins at the same
        position. Until then, :attr:`position` still counts that batch.
        """
        if self._whole and self._first == (epoch, first) and self.position in ((epoch, first), (epoch, first + 1)):
            self._first, self._peeked = None, (epoch, first)
            self._publish(epoch, first)

    def advance(self, epoch: int, batch: int, worker: Worker) -> None:
        """Move to position (``epoch``, ``batch``) when the batch before it is handed over.

        At an epoch's end, move on to the next epoch. But a DataLoader's worker stays, because other workers may be
        behind.
        """
        if not worker.count and self._is_over(epoch, batch):
            epoch, batch = epoch + 1, 0
        before = [self._epoch, self._batch]
        self._epoch, self._batch = epoch, batch
        if worker.count:
            # Keep a changed value: the main process has loaded a state, at whose position the next iteration begins.
            if self._length(epoch) is None and self._shared.values[worker.number].tolist() == before:
                self._shared.values[worker.number] = epoch, batch
        else:
            self._publish(*(self._named or ((epoch + 1, 0) if self._whole and batch else (epoch, batch))))

    def _is_over(self, epoch: int, batch: int) -> bool:
        length = self._length(epoch)
        return length is not None and batch >= length

    def _publish(self, epoch: int, batch: int) -> None:
        """Write to the shared memory the position at which each worker begins: worker w begins at ``batch`` + w."""
        self._published = [epoch, batch]
        self._shared.values[:, 0] = epoch
        self._shared.values[:, 1] = np.arange(batch, batch + _MAX_WORKERS)
