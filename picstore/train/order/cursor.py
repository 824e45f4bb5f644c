"""The position of a loader: which batch comes next, in its own process and in the workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.utils.data import get_worker_info

from picstore.train.order.position import check_position
from picstore.train.order.shared_array import SharedIntegers

_MAX_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class Worker:
    """The number of this process among a DataLoader's workers; ``count`` is 0 in any other process."""

    number: int = 0
    count: int = 0

    @classmethod
    def current(cls) -> Worker:
        """This process."""
        info = get_worker_info()
        return cls() if info is None else cls(info.id, info.num_workers)

    @property
    def step(self) -> int:
        """A worker makes every ``step``-th batch."""
        return max(1, self.count)


class EpochCursor:
    """The next batch, as an epoch and a number in it.

    A DataLoader's workers are copies of the loader, made for each epoch or kept, and none of them tells the original
    how far it has come. So each finds the batch that it makes next in memory that all share. Worker w of n makes the
    batches w, w + n, … of an epoch, which is the order in which a DataLoader asks its workers.

    Args:
        length: gives the batches in an epoch; None without end.
        whole: whether an iteration that was broken off is followed by the next epoch, instead of the next batch. In
            workers it always is if there are epochs: they are ahead of what was taken.
    """

    def __init__(self, length: Callable[[int], int | None], *, whole: bool) -> None:
        self._length, self._whole, self._resume = length, whole, False
        self._offset: int | None = 0  # from the caller's numbers of epochs to these
        self._shared = SharedIntegers((_MAX_WORKERS, 2))  # of each worker
        self._epoch = self._batch = 0
        self._published = [0, 0]  # what this process told worker 0
        self._owner = Worker()  # the process whose position this copy holds
        self.move_to(0, 0)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number of the batch that follows the last one that was taken here."""
        worker = Worker.current()
        if worker.count and worker != self._owner:  # a copy that has not begun
            epoch, batch = self._shared.values[worker.number].tolist()
            return epoch, batch
        return self._epoch, self._batch

    @property
    def in_workers(self) -> bool:
        """Whether workers have begun an iteration since this process, no worker, held the position."""
        return not Worker.current().count and bool((self._shared.values[0] != self._published).any())

    def load(self, epoch: int, batch: int) -> None:
        """Move to the position of a state; :meth:`follow_epoch` counts from its epoch."""
        self.move_to(epoch, batch)
        self._offset = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch, unless it goes on in the middle of this epoch anyway.

        UsageError for an impossible one.
        """
        (epoch,) = check_position(epoch=epoch)
        if not (self._resume and self._batch and epoch == self._epoch) or self.in_workers:
            self.move_to(epoch, 0)

    def follow_epoch(self, number: int) -> None:
        """Make the next iteration begin an epoch; the first number after a state was loaded stands for its position."""
        (number,) = check_position(epoch=number)
        if self._offset is None:
            self._offset = self._epoch - number
        else:
            self.set_epoch(number + self._offset)

    def move_to(self, epoch: int, batch: int) -> None:
        """Make the next iteration begin here; in a worker, the next of this worker alone."""
        worker = Worker.current()
        if not worker.count and self._is_over(epoch, batch):
            epoch, batch = epoch + 1, 0
        self._epoch, self._batch, self._resume, self._owner = epoch, batch, True, worker
        if worker.count:
            self._shared.values[worker.number] = epoch, batch
        else:
            self._publish(epoch, batch)

    def start_iteration(self, worker: Worker) -> tuple[int, int]:
        """Epoch and number of the first batch of a new iteration."""
        if worker.count:
            self._epoch, self._batch = self._shared.values[worker.number].tolist()
            if self._length(self._epoch) is not None:
                self._shared.values[worker.number] = self._epoch + 1, worker.number
        elif self._whole and self._batch and not self._resume:
            self._epoch, self._batch = self._epoch + 1, 0
        self._resume, self._owner = False, worker
        return self._epoch, self._batch

    def advance(self, epoch: int, batch: int, worker: Worker) -> None:
        """Note the batch after the one that is handed over now.

        The end of an epoch is the beginning of another. A worker stays at the end: others may not be there yet.
        """
        if not worker.count and self._is_over(epoch, batch):
            epoch, batch = epoch + 1, 0
        self._epoch, self._batch = epoch, batch
        if worker.count:
            if self._length(epoch) is None:
                self._shared.values[worker.number] = epoch, batch
        else:
            self._publish(*((epoch + 1, 0) if self._whole and batch else (epoch, batch)))

    def _is_over(self, epoch: int, batch: int) -> bool:
        length = self._length(epoch)
        return length is not None and batch >= length

    def _publish(self, epoch: int, batch: int) -> None:
        """Tell all workers."""
        self._published = [epoch, batch]
        self._shared.values[:, 0] = epoch
        self._shared.values[:, 1] = np.arange(batch, batch + _MAX_WORKERS)
