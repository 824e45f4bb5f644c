"""Selections: the chosen ones of a data set's live records, as one bit a record.

Nothing of a selection is stored. 10**9 records take 125 MB; a container without a chosen record has a count of 0, so
that no reader opens it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, U8, Bools, read_only
from picstore.errors import UsageError
from picstore.storage.edits.tombstones import LiveRecords

_BITS_SET = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class SelectedRecords(LiveRecords):
    """The chosen records among the live ones; ``deleted`` and ``before`` describe the whole data set.

    Attributes:
        bits: whether each stored record is chosen, as ``np.packbits`` has it, and a byte of zeros.
        firsts: int64 (containers + 1,), number of chosen records before each container.
    """

    bits: U8
    firsts: I64

    @classmethod
    def of(cls, live: LiveRecords, chosen: Bools) -> SelectedRecords:
        """Keep the live records that ``chosen``, bool (len(live),), marks."""
        marks = chosen
        if len(live) < int(live.starts[-1]):
            marks = live.marks()
            marks[marks] = chosen
        return cls.from_bits(live, np.append(np.packbits(marks), np.uint8(0)))

    @classmethod
    def from_bits(cls, live: LiveRecords, bits: U8) -> SelectedRecords:
        """Keep the live records that ``bits`` choose; no deleted record has its bit set."""
        before_byte: I64 = np.concatenate(([0], np.cumsum(_BITS_SET[bits], dtype=np.int64)))
        byte, bit = live.starts >> 3, live.starts & 7
        firsts = before_byte[byte] + _BITS_SET[bits[byte] & ~(0xFF >> bit)]
        return cls(live.starts, live.deleted, live.before, read_only(bits), read_only(firsts))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def counts(self) -> I64:
        """Number of chosen records of each container, int64 (containers,)."""
        return np.diff(self.firsts)

    def marks(self) -> Bools:
        """Mark the chosen ones of all stored records: bool (records,)."""
        return np.unpackbits(self.bits, count=int(self.starts[-1])).view(np.bool_)

    @property
    def digest(self) -> str:
        """Hash of which records are chosen: 16 hexadecimal digits."""
        return hashlib.sha256(self.bits.data).hexdigest()[:16]

    def to_stored(self, numbers: I64) -> I64:
        """Map numbers among the chosen records to numbers in stored order."""
        containers = np.searchsorted(self.firsts, numbers, side="right") - 1
        return self.starts[containers] + self.to_record_numbers(containers, numbers - self.firsts[containers])

    def to_record_numbers(self, containers: I64, numbers: I64) -> I64:
        """Map numbers among the chosen records of containers to record numbers within these containers."""
        each, which = np.unique(containers, return_inverse=True)
        lengths = self.starts[each + 1] - self.starts[each]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        stored = within + np.repeat(self.starts[each], lengths)
        chosen = within[(self.bits[stored >> 3] >> (7 - (stored & 7)) & 1).astype(np.bool_)]
        counts = self.firsts[each + 1] - self.firsts[each]
        found: I64 = chosen[(np.cumsum(counts) - counts)[which] + numbers]
        return found

    def deleted_in(self, container: int) -> I64:
        """Find the records of a container that are deleted or not chosen: record numbers within it, ascending."""
        return np.flatnonzero(~self.mask(container))

    def mask(self, container: int) -> Bools:
        """Mark the chosen records of a container: bool (records,)."""
        start, stop = int(self.starts[container]), int(self.starts[container + 1])
        first = start & ~7
        marks = np.unpackbits(self.bits[first >> 3 : (stop + 7) >> 3]).view(np.bool_)
        return marks[start - first : stop - first]


def integers(values: npt.ArrayLike, name: str) -> I64:
    """Take a list of integers, int64 (n,); UsageError for anything else."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise UsageError(f"{name} are an array of shape {array.shape} and {array.dtype}; give a list of integers")
    return array.astype(np.int64)


def mask_of(chosen: npt.ArrayLike | None, count: int) -> Bools:
    """Make a mask of ``count`` records of a mask or of positions; UsageError where these are not of the records."""
    if np.asarray(chosen).dtype.kind == "b":
        mask: Bools = np.asarray(chosen)
        if mask.shape != (count,):
            raise UsageError(f"a mask of shape {mask.shape} for {count} records; give a bool for each")
        return mask
    positions = integers(np.asarray(chosen), "positions")
    outside = positions[(positions < -count) | (positions >= count)]
    if len(outside):
        raise UsageError(f"position {outside[0]} of a data set of {count} records; give 0 to {count - 1}")
    mask = np.zeros(count, dtype=np.bool_)
    mask[positions] = True
    if int(mask.sum()) < len(positions):
        each, times = np.unique(positions % count, return_counts=True)
        first = each[times > 1][0]
        raise UsageError(
            f"position {first} is selected twice; give it once, and a Loader's weights to draw it more often"
        )
    return mask
