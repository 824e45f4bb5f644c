"""Tombstones: numbers of the deleted records, and the mapping of live records to stored ones (docs/format.md, "Edits").

A deleted record stays in its container. Its number in stored order identifies it, so that opening a data set reads no
container, and appending rows changes no number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Bools, read_only
from picstore.errors import Corrupt


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """The records that are not deleted; its arrays are read-only.

    Attributes:
        starts: int64 (containers + 1,), number in stored order of each container's first record.
        deleted: int64 (n,), ascending: numbers of the deleted records.
        before: int64 (n,), number of live records before each deleted one.
    """

    starts: I64
    deleted: I64
    before: I64

    @classmethod
    def from_deleted(cls, records: npt.ArrayLike, deleted: npt.NDArray[np.integer], *, file: str) -> LiveRecords:
        """Build from the records of each container; Corrupt where ``deleted`` are not ascending numbers of them."""
        starts: I64 = np.concatenate(([0], np.cumsum(records, dtype=np.int64)))
        if deleted.ndim != 1 or deleted.dtype.kind != "i":
            raise Corrupt("the tombstones are not a list of integers", file)
        numbers = deleted.astype(np.int64)
        inside = not len(numbers) or (numbers[0] >= 0 and numbers[-1] < starts[-1])
        if not inside or (np.diff(numbers) <= 0).any():
            raise Corrupt("the tombstones belong to another data set", file)
        return cls(read_only(starts), read_only(numbers), read_only(numbers - np.arange(len(numbers))))

    def __len__(self) -> int:
        return int(self.starts[-1]) - len(self.deleted)

    @property
    def counts(self) -> I64:
        """Number of live records of each container, int64 (containers,)."""
        if not len(self.deleted):
            return np.diff(self.starts)
        return np.diff(self.starts - np.searchsorted(self.deleted, self.starts))

    @property
    def numbers(self) -> I64:
        """Numbers in stored order of the live records, ascending."""
        return np.flatnonzero(self.marks())

    def marks(self) -> Bools:
        """Mark the live ones of all stored records: bool (records,)."""
        marks = np.ones(int(self.starts[-1]), dtype=np.bool_)
        marks[self.deleted] = False
        return marks

    def to_stored(self, numbers: I64) -> I64:
        """Map live-record numbers to numbers in stored order."""
        if not len(self.deleted):
            return numbers
        return numbers + np.searchsorted(self.before, numbers, side="right")

    def find(self, numbers: I64) -> tuple[I64, I64]:
        """Find live records by number: their containers, and their record numbers within these."""
        stored = self.to_stored(numbers)
        containers: I64 = np.searchsorted(self.starts, stored, side="right") - 1
        return containers, stored - self.starts[containers]

    def to_record_numbers(self, containers: I64, numbers: I64) -> I64:
        """Map live-record numbers within containers to record numbers within these containers."""
        if not len(self.deleted):
            return numbers
        starts = self.starts[containers]
        left_before = starts - np.searchsorted(self.deleted, starts)
        return self.to_stored(left_before + numbers) - starts

    def deleted_in(self, container: int) -> I64:
        """Find the deleted records of a container: record numbers within it, ascending."""
        start, stop = self.starts[container], self.starts[container + 1]
        first, last = np.searchsorted(self.deleted, (start, stop))
        within: I64 = self.deleted[first:last] - start
        return within

    def mask(self, container: int) -> Bools:
        """Mark the live records of a container: bool (records,)."""
        mask = np.ones(int(self.starts[container + 1] - self.starts[container]), dtype=np.bool_)
        if len(self.deleted):
            mask[self.deleted_in(container)] = False
        return mask
