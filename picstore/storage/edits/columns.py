"""Columns: values by record id, such as captions, embeddings or other labels (docs/format.md, "Edits")."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import I64, Array, Bools, read_only
from picstore.errors import Corrupt, UsageError, counted
from picstore.storage.edits.edit_entries import ColumnEntry, NpyFile, pack_npy_file

LABEL = "label"  # name of the column that replaces the records' labels
NUMBERS, TEXT = "numbers", "text"
RESERVED = ("boxes", "keypoints", "polygons", "extra", "labels", "visibility", "index", "images", "ids", "jpeg", "id")

Values: TypeAlias = "Array | list[str | None]"
FileBytes: TypeAlias = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Column:
    """Read-only values of a column by record id, in memory or mapped from a file.

    Attributes:
        ids: ids of the records with a value, int64 (n,), ascending.
        values: numbers (n, …), or the UTF-8 bytes of all strings, joined.
        ends: int64 (n,), offset in ``values`` at which each string ends; None for numbers.
        file: name of the file that holds ``values``, for messages.
    """

    ids: I64
    values: Array
    ends: I64 | None = None
    file: str = ""

    def find_ids(self, ids: I64) -> tuple[I64, Bools]:
        """Return the index in ``self.ids`` of each id, int64 (n,), and whether the id occurs there, bool (n,)."""
        indices = np.searchsorted(self.ids, ids)
        indices[indices == len(self.ids)] = 0
        found = self.ids[indices] == ids if len(self.ids) else np.zeros(len(ids), dtype=np.bool_)
        return indices, found

    def take(self, ids: I64) -> Values:
        """Return the values of ``ids``: numbers (n, …), NaN or -1 if missing; or a list of strings, None if missing."""
        indices, found = self.find_ids(ids)
        if self.ends is not None:
            return [self._text(index) if there else None for index, there in zip(indices, found, strict=True)]
        values = np.asarray(self.missing_values(len(ids)))
        values[found] = self.values[indices[found]]
        return values

    def of(self, ids: I64) -> tuple[I64, Values]:
        """Return those of ``ids`` whose records have a value in the column, and the values."""
        indices, found = self.find_ids(ids)
        if self.ends is not None:
            return ids[found], [self._text(index) for index in indices[found]]
        return ids[found], self.values[indices[found]]

    def missing_values(self, count: int) -> Values:
        """Return ``count`` placeholders for missing values: NaN for floats, -1 for integers, None for strings."""
        if self.ends is not None:
            return [None] * count
        missing = np.nan if self.values.dtype.kind == "f" else -1
        return np.full((count, *self.values.shape[1:]), missing, self.values.dtype)

    def get(self, id_: int) -> Any:
        """Return the value of one record: a str, int, float or array; None if the record has no value."""
        # Convert an id from 2**63 on to the negative int64 by which columns represent it.
        indices, found = self.find_ids(np.array([id_]).astype(np.int64))
        if not found[0]:
            return None
        if self.ends is not None:
            return self._text(indices[0])
        value = self.values[indices[0]]
        return value.copy() if value.ndim else value.item()

    def joined(self, ids: I64, given: Sequence[Any] | Array) -> tuple[I64, Sequence[Any] | Array]:
        """Return the column's ids and values after an update in which the records ``ids`` get the values ``given``."""
        others = self.ids[~np.isin(self.ids, ids)]
        old = self.take(others)
        values: Any = [*old, *given]
        if isinstance(old, np.ndarray):
            if old.shape[1:] != np.shape(given)[1:]:
                raise UsageError(f"values have shape {np.shape(given)[1:]}; give {old.shape[1:]}, as the column has")
            values = np.concatenate([old, np.asarray(given)])
        return np.concatenate([others, ids]), values

    def _text(self, index: int) -> str:
        ends = self.ends
        if ends is None:
            raise TypeError("a column of numbers has no text")
        start = int(ends[index - 1]) if index else 0
        try:
            return bytes(self.values[start : int(ends[index])]).decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"text {index} of the column is not UTF-8", self.file) from error


def read_column(entry: ColumnEntry, read: Callable[[NpyFile], Array]) -> Column:
    """Read a column from its files, each by calling ``read``; raise Corrupt if the files contradict each other."""
    ids, values = read(entry.ids), read(entry.values)
    ends = None if entry.ends is None else read(entry.ends)
    sound = ids.ndim == 1 and ids.dtype == np.int64 and not (np.diff(ids) <= 0).any()
    if ends is None:
        sound &= entry.kind == NUMBERS and values.ndim > 0 and len(values) == len(ids) and values.dtype.kind in "if"
        sound &= entry.name != LABEL or (values.dtype == np.int64 and values.ndim == 1)
    else:
        sound &= entry.kind == TEXT and entry.name != LABEL and ends.dtype == np.int64 and ends.shape == ids.shape
        sound &= values.dtype == np.uint8 and values.ndim == 1
        sound = sound and not (np.diff(ends, prepend=0) < 0).any() and (not len(ends) or int(ends[-1]) == len(values))
    if not sound:
        raise Corrupt(f"the files of the column {entry.name!r} do not belong together", entry.values.file)
    return Column(read_only(ids), read_only(values), None if ends is None else read_only(ends), entry.values.file)


def make_column(name: str, ids: I64, given: Sequence[Any] | Array) -> tuple[ColumnEntry, FileBytes]:
    """Build a column: return its manifest entry, and the bytes of its files by file name.

    Raise UsageError if the name or a value is invalid.

    Args:
        ids: ids of the records, int64 (n,), each once, in any order.
        given: n strings, n numbers, or n arrays of one shape. Integers and booleans become int64, floats keep their
            dtype.
    """
    if not name.isidentifier() or name in RESERVED:
        raise UsageError(f"a column cannot be called {name!r}; take a word such as 'caption'")
    if not isinstance(given, Sized):
        raise UsageError(f"the column {name!r} is {given!r}; give a list or an array, a value for each record")
    if len(given) != len(ids):
        values = f"{counted(len(given), 'value')} for {counted(len(ids), 'record')}"
        raise UsageError(f"the column {name!r} has {values}; give one for each")
    order = np.argsort(ids, kind="stable")
    texts = not isinstance(given, np.ndarray) and len(given) and all(isinstance(value, str) for value in given)
    arrays: list[Array]
    if texts or (isinstance(given, np.ndarray) and given.dtype.kind == "U"):
        blobs = [_encode(name, str(given[k])) for k in order]
        ends = np.cumsum([len(blob) for blob in blobs], dtype=np.int64)
        arrays = [ids[order], np.frombuffer(b"".join(blobs), dtype=np.uint8), ends]
    else:
        arrays = [ids[order], _numbers(name, given)[order]]
    if name == LABEL and (texts or arrays[1].dtype.kind != "i" or arrays[1].ndim != 1):
        held = "texts" if len(arrays) == 3 else f"{arrays[1].dtype} of shape {arrays[1].shape}"
        raise UsageError(f"the column 'label' holds {held}; labels must be integers, one a record")
    packed = [pack_npy_file(array) for array in arrays]
    kind = TEXT if len(arrays) == 3 else NUMBERS
    entry = ColumnEntry(name, kind, packed[0][0], packed[1][0], packed[2][0] if len(packed) == 3 else None)
    return entry, {npy_file.file: raw for npy_file, raw in packed}


def _encode(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the column {name!r} holds {text!r}, which is not Unicode text; replace it") from error


def _numbers(name: str, given: Sequence[Any] | Array) -> Array:
    try:
        values = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the column {name!r} holds values of several shapes; give one shape") from error
    if values.dtype.kind in "iub":
        if values.dtype.kind == "u" and values.size and int(values.max()) >= 1 << 63:
            raise UsageError(f"the column {name!r} holds {int(values.max())}; integers have at most 63 bits and a sign")
        return values.astype("<i8")
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise UsageError(f"the column {name!r} holds {values.dtype}; texts or numbers are possible, all of one kind")
    return values.astype(values.dtype.newbyteorder("<"))
