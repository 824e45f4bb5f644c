"""InputTable, the inputs of a source in a temporary file, so that 10**8 inputs take little memory."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
import zlib
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import attrgetter, index
from typing import Any, BinaryIO, overload

from picstore.errors import PicstoreError
from picstore.prepare.sources.inputs import Input

BLOCK = 1024  # number of inputs that are written to the temporary file, and read, at a time

# Inputs are pickled as packed blocks if their group (one call of ``add_packed``) has at most this many labels, and one
# by one if it has more, because a pickle of blocks holds all labels of the group.
_MOST_LABELS = 1 << 12

_FIELDS = tuple(each.name for each in fields(Input))
_LABEL, _EXTRA, _ANNOTATED, _ATTACHMENTS, _READER, _KEY, _FRAME = map(
    _FIELDS.index, ("label", "extra", "annotated", "attachments", "reader", "key", "frame")
)
_values_of = attrgetter(*_FIELDS)

Reader = Callable[[Input], bytes]


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """Inputs packed to bytes for another process. An input takes 13 bytes if the inputs' names are similar.

    Attributes:
        blocks: packed bytes of each block of up to BLOCK inputs.
        counts: number of inputs in each block.
        readers: functions that read the inputs; blocks refer to them by index. None stands for inputs without a reader.
    """

    blocks: tuple[bytes, ...]
    counts: tuple[int, ...]
    readers: tuple[Reader | None, ...]


class _Inputs(Sequence[Input]):
    """Sequence of inputs. A slice is an :class:`InputView`, which copies nothing; a pickle is restored as a list."""

    @overload
    def __getitem__(self, k: int) -> Input: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Input]: ...
    def __getitem__(self, k: int | slice) -> Input | Sequence[Input]:
        numbers = range(len(self))[k]
        return self._at(numbers) if isinstance(numbers, int) else InputView(self, numbers)

    @abstractmethod
    def _at(self, k: int) -> Input:
        """Return the input at index ``k``, which is from 0 to ``len(self) - 1``."""

    def __reduce__(self) -> tuple[Callable[..., list[Input]], tuple[Any, ...]]:
        return list, (list(self),)


class InputTable(_Inputs):
    """Inputs in the order in which they were added. Complete blocks of BLOCK inputs are kept in a temporary file.

    Each group of inputs numbers its labels separately. Inputs added one by one are group 0; each call of
    :meth:`add_packed` adds a group.

    Raises:
        PicstoreError: the disk has no room for the file.
    """

    def __init__(self, inputs: Iterable[Input] = ()) -> None:
        self._file: BinaryIO | None = None  # temporary file, created when the first block is written
        # Offsets in the temporary file: 0, then the end of each block.
        self._ends = array("Q", [0])
        # Running total of inputs: 0, then for each block, the number of inputs in it and all blocks before it.
        self._counts = array("Q", [0])
        # Number of the group of inputs to which each block of inputs belongs.
        self._groups = array("L")
        self._last: list[Input] = []  # inputs after the last complete block
        # For each group of inputs, the functions that read inputs; the temporary file refers to them by index.
        self._readers: list[list[Reader | None]] = [[None]]
        # For each group, the class numbers that replace the labels in the temporary file; None to keep these labels.
        self._labels: list[Sequence[int] | None] = [None]
        # Index of the block that was unpacked most recently (−1: none), and its inputs, kept for the next access.
        self._read: tuple[int, list[Input]] = (-1, [])
        self.extend(inputs)

    def append(self, one: Input) -> None:
        self._last.append(one)
        if len(self._last) == BLOCK:
            self._write()

    def extend(self, inputs: Iterable[Input]) -> None:
        for one in inputs:
            self.append(one)

    def add_packed(self, packed: PackedInputs) -> int:
        """Add packed inputs as a new group, and return the group's index, for :meth:`number_labels`."""
        if self._last:
            self._write()
        self._readers.append(list(packed.readers))
        self._labels.append(None)
        group = len(self._readers) - 1
        for data, count in zip(packed.blocks, packed.counts, strict=True):
            self._append_block(data, count, group)
        return group

    def pack(self) -> PackedInputs:
        """Return all inputs packed. Only call this before any call of :meth:`number_labels` or :meth:`add_packed`."""
        if self._last:
            self._write()
        blocks = tuple(self._bytes_of(self._file, block) for block in range(len(self._groups)) if self._file)
        counts = tuple(end - begin for begin, end in pairwise(self._counts))
        return PackedInputs(blocks, counts, tuple(self._readers[0]))

    def __len__(self) -> int:
        return self._counts[-1] + len(self._last)

    def _at(self, k: int) -> Input:
        if self._file is None or k >= self._counts[-1]:
            return self._last[k - self._counts[-1]]
        number, inputs = self._read
        if number < 0 or not self._counts[number] <= k < self._counts[number + 1]:
            number = bisect_right(self._counts, k) - 1
            group, block = self._groups[number], self._bytes_of(self._file, number)
            inputs = _unpack(block, self._labels[group], self._readers[group])
            self._read = (number, inputs)
        return inputs[k - self._counts[number]]

    def number_labels(self, numbers: Sequence[int], *, group: int = 0) -> None:
        """Replace each label k of a group's inputs by ``numbers[k]``; no inputs may be added to the group later."""
        self._labels[group], self._read = numbers, (-1, [])
        if group == 0:
            self._last = [replace(one, label=numbers[one.label]) for one in self._last]

    def reduce_run(self, begin: int, end: int) -> tuple[Callable[..., list[Input]], tuple[Any, ...]]:
        """Return (function, arguments) for pickle to restore inputs ``begin`` to ``end - 1``, packed if possible."""
        stored = self._counts[-1]
        tail = self._last[max(begin - stored, 0) : max(end - stored, 0)]
        if self._file is None or begin >= min(end, stored):
            return list, (tail,)
        first, last = bisect_right(self._counts, begin) - 1, bisect_right(self._counts, min(end, stored) - 1)
        groups = set(self._groups[first:last])
        if any(len(self._labels[group] or ()) > _MOST_LABELS for group in groups):
            return list, ([self._at(k) for k in range(begin, end)],)
        blocks = [(self._bytes_of(self._file, block), self._groups[block]) for block in range(first, last)]
        of_groups = {group: (self._labels[group], self._readers[group]) for group in groups}
        kept = begin - self._counts[first], min(end, stored) - self._counts[first]
        return _unpack_run, (blocks, of_groups, kept, tail)

    def _write(self) -> None:
        # ``operator.index`` converts NumPy's integers, which JSON cannot hold, to Python's.
        text = json.dumps([self._to_json(one) for one in self._last], default=index)
        self._append_block(zlib.compress(text.encode(), 1), len(self._last), 0)
        self._last = []

    def _append_block(self, data: bytes, count: int, group: int) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="picstore-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            folder = tempfile.gettempdir()
            raise PicstoreError(f"{folder} has no room for the list of inputs: {error}; set TMPDIR") from error
        self._ends.append(self._ends[-1] + len(data))
        self._counts.append(self._counts[-1] + count)
        self._groups.append(group)

    def _bytes_of(self, file: BinaryIO, block: int) -> bytes:
        begin, end = self._ends[block : block + 2]
        return os.pread(file.fileno(), end - begin, begin)

    def _to_json(self, one: Input) -> list[Any]:
        readers = self._readers[0]
        # Search the list from the start, which is fast, because a source has one or two readers.
        if one.reader not in readers:
            readers.append(one.reader)
        row = list(_values_of(one))
        # JSON cannot hold bytes; Latin-1 turns each byte into a character.
        row[_EXTRA], row[_KEY] = one.extra.decode("latin-1"), one.key.decode("latin-1")
        row[_ATTACHMENTS] = [(name, self._to_json(other)) for name, other in one.attachments]
        row[_READER] = readers.index(one.reader)
        return row


def _unpack(data: bytes, labels: Sequence[int] | None, readers: Sequence[Reader | None]) -> list[Input]:
    rows = json.loads(zlib.decompress(data))
    if labels is not None:
        for row in rows:
            row[_LABEL] = labels[row[_LABEL]]
    return [_from_json(row, readers) for row in rows]


def _unpack_run(
    blocks: Sequence[tuple[bytes, int]], of_groups: dict[int, Any], kept: tuple[int, int], tail: list[Input]
) -> list[Input]:
    """Restore inputs from a pickle, which holds the arguments that ``InputTable.reduce_run`` returned."""
    inputs = [one for data, group in blocks for one in _unpack(data, *of_groups[group])]
    return inputs[slice(*kept)] + tail


def _from_json(row: list[Any], readers: Sequence[Reader | None]) -> Input:
    row[_EXTRA], row[_KEY] = row[_EXTRA].encode("latin-1"), row[_KEY].encode("latin-1")
    row[_ANNOTATED], row[_FRAME] = row[_ANNOTATED] and tuple(row[_ANNOTATED]), row[_FRAME] and tuple(row[_FRAME])
    row[_ATTACHMENTS] = tuple((name, _from_json(other, readers)) for name, other in row[_ATTACHMENTS])
    row[_READER] = readers[row[_READER]]
    return Input(*row)


class InputView(_Inputs):
    """View of a sequence's inputs at the indices ``numbers``; function ``change`` is applied to an input on access."""

    def __init__(
        self, inputs: Sequence[Input], numbers: range | None = None, *, change: Callable[[Input], Input] | None = None
    ) -> None:
        self._inputs, self._change = inputs, change
        self._numbers = range(len(inputs)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __reduce__(self) -> tuple[Callable[..., list[Input]], tuple[Any, ...]]:
        run = self._numbers
        if isinstance(self._inputs, InputTable) and self._change is None and run.step == 1 and len(run):
            return self._inputs.reduce_run(run.start, run.stop)
        return super().__reduce__()

    def _at(self, k: int) -> Input:
        one = self._inputs[self._numbers[k]]
        return one if self._change is None else self._change(one)
