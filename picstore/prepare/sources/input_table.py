"""InputTable, the inputs of a source in a file without a name, so that 10**8 of them take little memory."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter, index
from typing import Any, BinaryIO, overload

from picstore.errors import PicstoreError
from picstore.prepare.sources.inputs import Input

BLOCK = 1024  # inputs that are written and read together

# All but attachments and reader; bytes are written apart, as JSON has none.
_FIELDS = ("name", "label", "path", "offset", "size", "problem", "annotated", "crc", "upright")
_LABEL = _FIELDS.index("label")
_texts_and_numbers = attrgetter(*_FIELDS)


class _Inputs(Sequence[Input]):
    """Inputs, whose slices are views; pickled as a list."""

    @overload
    def __getitem__(self, k: int) -> Input: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Input]: ...
    def __getitem__(self, k: int | slice) -> Input | Sequence[Input]:
        numbers = range(len(self))[k]
        return self._at(numbers) if isinstance(numbers, int) else InputView(self, numbers)

    def _at(self, k: int) -> Input:
        """Return input k, from 0 to ``len(self) - 1``."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[type[list[Input]], tuple[list[Input]]]:
        return list, (list(self),)


class InputTable(_Inputs):
    """Inputs in the order in which they are added; whole blocks of them are in a temporary file.

    Raises:
        PicstoreError: there is no room for the file.
    """

    def __init__(self, inputs: Iterable[Input] = ()) -> None:
        self._file: BinaryIO | None = None  # made for the first block
        self._ends = array("Q", [0])  # of blocks in the file
        self._last: list[Input] = []  # less than a block
        self._readers: list[Callable[[Input], bytes] | None] = [None]
        self._labels: Sequence[int] | None = None  # by the labels in the file
        self._read: tuple[int, list[Input]] = (-1, [])  # the block that was read last, and its number
        self.extend(inputs)

    def append(self, one: Input) -> None:
        """Add an input."""
        self._last.append(one)
        if len(self._last) == BLOCK:
            self._write()

    def extend(self, inputs: Iterable[Input]) -> None:
        """Add inputs."""
        for one in inputs:
            self.append(one)

    def __len__(self) -> int:
        return (len(self._ends) - 1) * BLOCK + len(self._last)

    def _at(self, k: int) -> Input:
        block, at = divmod(k, BLOCK)
        if self._file is None or block == len(self._ends) - 1:
            return self._last[at]
        number, inputs = self._read
        if number != block:
            inputs = self._read_block(self._file, block)
            self._read = (block, inputs)
        return inputs[at]

    def number_labels(self, numbers: Sequence[int]) -> None:
        """Replace each label k of the inputs that are there by ``numbers[k]``; nothing may be added afterwards."""
        self._labels, self._read = numbers, (-1, [])
        self._last = [replace(one, label=numbers[one.label]) for one in self._last]

    def _write(self) -> None:
        text = json.dumps([self._to_json(one) for one in self._last], default=index)  # index: NumPy's integers
        data = zlib.compress(text.encode(), 1)
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
        self._last = []

    def _read_block(self, file: BinaryIO, block: int) -> list[Input]:
        begin, end = self._ends[block : block + 2]
        data = os.pread(file.fileno(), end - begin, begin)
        rows = json.loads(zlib.decompress(data))
        if self._labels is not None:
            for row in rows:
                row[_LABEL] = self._labels[row[_LABEL]]
        return [self._from_json(row) for row in rows]

    def _to_json(self, one: Input) -> list[Any]:
        if one.reader not in self._readers:  # a source has one or two
            self._readers.append(one.reader)
        attachments = [(name, self._to_json(other)) for name, other in one.attachments]
        texts = one.extra.decode("latin-1"), one.key.decode("latin-1")
        return [*_texts_and_numbers(one), *texts, attachments, self._readers.index(one.reader)]

    def _from_json(self, row: list[Any]) -> Input:
        name, label, path, offset, size, problem, annotated, crc, upright, extra, key, attachments, reader = row
        return Input(
            name,
            label,
            path,
            offset,
            size,
            problem,
            extra.encode("latin-1"),
            annotated and tuple(annotated),
            tuple((name, self._from_json(other)) for name, other in attachments),
            self._readers[reader],
            key.encode("latin-1"),
            crc,
            upright,
        )


class InputView(_Inputs):
    """Some inputs of a sequence, each changed by a function as it is read."""

    def __init__(
        self, inputs: Sequence[Input], numbers: range | None = None, *, change: Callable[[Input], Input] | None = None
    ) -> None:
        self._inputs, self._change = inputs, change
        self._numbers = range(len(inputs)) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def _at(self, k: int) -> Input:
        one = self._inputs[self._numbers[k]]
        return one if self._change is None else self._change(one)
