"""Which of the stored records count: all but those that were deleted (docs/format.md, "Edits").

A deleted record stays in its container. It is known by its number in stored order, so that opening a data set need not
look into containers, and that rows which are appended behind change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Bools
from picstore.errors import Corrupt


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """The records that are left.

    Attributes:
        starts: int64 (containers + 1,), number in stored order of each container's first record.
        deleted: int64 (n,), ascending: numbers of those that are deleted.
        before: int64 (n,), how many are left before each of these.
    """

    starts: I64
    deleted: I64
    before: I64

    @classmethod
    def from_deleted(cls, records: npt.ArrayLike, deleted: npt.NDArray[np.integer], *, file: str) -> LiveRecords:
        """Of containers with ``records`` each; Corrupt where ``deleted`` cannot be of them."""
        starts: I64 = np.concatenate(([0], np.cumsum(records, dtype=np.int64)))
        numbers = deleted.astype(np.int64)
        inside = not len(numbers) or (numbers[0] >= 0 and numbers[-1] < starts[-1])
        if numbers.ndim != 1 or not inside or (np.diff(numbers) <= 0).any():
            raise Corrupt("the tombstones are not those of this data set", file)
        return cls(starts, numbers, numbers - np.arange(len(numbers)))

    def __len__(self) -> int:
        return int(self.starts[-1]) - len(self.deleted)

    @property
    def counts(self) -> I64:
        """int64 (containers,), how many records of each container are left."""
        return np.diff(self.starts - np.searchsorted(self.deleted, self.starts))

    def to_stored(self, numbers: I64) -> I64:
        """Of records by their numbers among those that are left, their numbers in stored order."""
        if not len(self.deleted):
            return numbers
        return numbers + np.searchsorted(self.before, numbers, side="right")

    def to_record_numbers(self, containers: I64, numbers: I64) -> I64:
        """The same in a container each: the k-th record left of a container is which of its records."""
        if not len(self.deleted):
            return numbers
        starts = self.starts[containers]
        left_before = starts - np.searchsorted(self.deleted, starts)
        return self.to_stored(left_before + numbers) - starts

    def deleted_in(self, container: int) -> I64:
        """Which records of a container are deleted, ascending."""
        start, stop = self.starts[container], self.starts[container + 1]
        first, last = np.searchsorted(self.deleted, (start, stop))
        within: I64 = self.deleted[first:last] - start
        return within

    def mask(self, container: int) -> Bools:
        """bool (records,): which records of a container are left."""
        mask = np.ones(int(self.starts[container + 1] - self.starts[container]), dtype=np.bool_)
        mask[self.deleted_in(container)] = False
        return mask
