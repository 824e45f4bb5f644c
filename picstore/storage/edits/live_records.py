"""Records that a reader sees: all that are not deleted, or a selection of these records (docs/format.md, "Edits").

A deleted record stays in its container. Edits identify it by its number in stored order, so that opening a dataset
reads no container, and appending rows changes no number. A selection is not stored but held as one bit per record, 125
MB for 10**9 records. A container without a live or selected record has a count of 0, so that no reader opens it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, U8, Bools, read_only
from picstore.errors import Corrupt, UsageError, counted

_BITS_SET = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """The records of a dataset that are not deleted; all arrays are read-only.

    Attributes:
        starts: int64 (containers + 1,), number of stored records before each container; last, the number of all.
        deleted: int64 (n,), position of each deleted record among all stored records, ascending.
        before: int64 (n,), number of live records before each deleted record.
    """

    starts: I64
    deleted: I64
    before: I64

    @classmethod
    def from_deleted(cls, records: npt.ArrayLike, deleted: npt.NDArray[np.integer], *, file: str) -> LiveRecords:
        """Build LiveRecords from the containers' numbers of records; raise Corrupt unless ``deleted`` is ascending."""
        starts: I64 = np.concatenate(([0], np.cumsum(records, dtype=np.int64)))
        if deleted.ndim != 1 or deleted.dtype.kind != "i":
            raise Corrupt("the tombstones are not a list of integers", file)
        numbers = deleted.astype(np.int64)
        inside = not len(numbers) or (numbers[0] >= 0 and numbers[-1] < starts[-1])
        if not inside or (np.diff(numbers) <= 0).any():
            raise Corrupt("the tombstones belong to another dataset", file)
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
        """Indices of the live records among all stored records, ascending."""
        return np.flatnonzero(self.marks())

    def marks(self) -> Bools:
        """Return which of all stored records are live: bool (records,)."""
        marks = np.ones(int(self.starts[-1]), dtype=np.bool_)
        marks[self.deleted] = False
        return marks

    def to_stored(self, numbers: I64) -> I64:
        """Map positions among live records to indices among all stored records."""
        if not len(self.deleted):
            return numbers
        return numbers + np.searchsorted(self.before, numbers, side="right")

    def find(self, numbers: I64) -> tuple[I64, I64]:
        """Return, for each position among the live records, the record's container, and its index in the container."""
        stored = self.to_stored(numbers)
        containers: I64 = np.searchsorted(self.starts, stored, side="right") - 1
        return containers, stored - self.starts[containers]

    def to_record_numbers(self, containers: I64, numbers: I64) -> I64:
        """Convert each ``numbers[i]`` from an index among the live records of ``containers[i]`` to a record number."""
        if not len(self.deleted):
            return numbers
        starts = self.starts[containers]
        left_before = starts - np.searchsorted(self.deleted, starts)
        return self.to_stored(left_before + numbers) - starts

    def deleted_in(self, container: int) -> I64:
        """Return the indices in a container, ascending, of the container's deleted records."""
        start, stop = self.starts[container], self.starts[container + 1]
        first, last = np.searchsorted(self.deleted, (start, stop))
        within: I64 = self.deleted[first:last] - start
        return within

    def mask(self, container: int) -> Bools:
        """Return which of a container's stored records are live: bool (records,)."""
        mask = np.ones(int(self.starts[container + 1] - self.starts[container]), dtype=np.bool_)
        if len(self.deleted):
            mask[self.deleted_in(container)] = False
        return mask


@dataclass(frozen=True, slots=True)
class SelectedRecords(LiveRecords):
    """A selection of a dataset's live records; its methods treat only the chosen records as live.

    The arrays of :class:`LiveRecords` describe the whole dataset.

    Attributes:
        bits: uint8, a bit per stored record, set if the record is chosen, packed by ``np.packbits``; then a zero byte.
        firsts: int64 (containers + 1,), number of chosen records before each container; last, the number of all.
    """

    bits: U8
    firsts: I64

    @classmethod
    def of(cls, live: LiveRecords, chosen: Bools) -> SelectedRecords:
        """Select those live records that are marked in ``chosen``, bool (len(live),)."""
        marks = chosen
        if len(live) < int(live.starts[-1]):
            marks = live.marks()
            marks[marks] = chosen
        return cls.from_bits(live, np.append(np.packbits(marks), np.uint8(0)))

    @classmethod
    def from_bits(cls, live: LiveRecords, bits: U8) -> SelectedRecords:
        """Build the selection from its attribute ``bits``; the bits of deleted records must not be set."""
        before_byte: I64 = np.concatenate(([0], np.cumsum(_BITS_SET[bits], dtype=np.int64)))
        byte, bit = live.starts >> 3, live.starts & 7
        firsts = before_byte[byte] + _BITS_SET[bits[byte] & ~(0xFF >> bit)]
        return cls(live.starts, live.deleted, live.before, read_only(bits), read_only(firsts))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def counts(self) -> I64:
        return np.diff(self.firsts)

    def marks(self) -> Bools:
        return np.unpackbits(self.bits, count=int(self.starts[-1])).view(np.bool_)

    @property
    def digest(self) -> str:
        """Hash of the chosen records, 16 hexadecimal digits: equal for equal selections from a dataset."""
        return hashlib.sha256(self.bits.data).hexdigest()[:16]

    def to_stored(self, numbers: I64) -> I64:
        containers = np.searchsorted(self.firsts, numbers, side="right") - 1
        return self.starts[containers] + self.to_record_numbers(containers, numbers - self.firsts[containers])

    def to_record_numbers(self, containers: I64, numbers: I64) -> I64:
        each, which = np.unique(containers, return_inverse=True)
        lengths = self.starts[each + 1] - self.starts[each]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        stored = within + np.repeat(self.starts[each], lengths)
        chosen = within[(self.bits[stored >> 3] >> (7 - (stored & 7)) & 1).astype(np.bool_)]
        counts = self.firsts[each + 1] - self.firsts[each]
        found: I64 = chosen[(np.cumsum(counts) - counts)[which] + numbers]
        return found

    def deleted_in(self, container: int) -> I64:
        return np.flatnonzero(~self.mask(container))

    def mask(self, container: int) -> Bools:
        start, stop = int(self.starts[container]), int(self.starts[container + 1])
        first = start & ~7
        marks = np.unpackbits(self.bits[first >> 3 : (stop + 7) >> 3]).view(np.bool_)
        return marks[start - first : stop - first]


def integers(values: npt.ArrayLike, name: str) -> I64:
    """Convert a list of integers to int64 (n,); raise UsageError if ``values`` are anything else."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise UsageError(f"{name} are an array of shape {array.shape} and {array.dtype}; give a list of integers")
    return array.astype(np.int64)


def mask_of(chosen: npt.ArrayLike | None, count: int) -> Bools:
    """Return ``chosen``, a mask or distinct positions, as a mask, bool (count,); raise UsageError if it is neither."""
    if np.asarray(chosen).dtype.kind == "b":
        mask: Bools = np.asarray(chosen)
        if mask.shape != (count,):
            raise UsageError(f"a mask of shape {mask.shape} for {counted(count, 'record')}; give a bool for each")
        return mask
    positions = integers(np.asarray(chosen), "positions")
    outside = positions[(positions < -count) | (positions >= count)]
    if len(outside):
        raise UsageError(f"position {outside[0]} of a dataset of {counted(count, 'record')}; give 0 to {count - 1}")
    mask = np.zeros(count, dtype=np.bool_)
    mask[positions] = True
    if int(mask.sum()) < len(positions):
        each, times = np.unique(positions % count, return_counts=True)
        first = each[times > 1][0]
        raise UsageError(
            f"position {first} is selected twice; give it once, and a Loader's weights to draw it more often"
        )
    return mask
