"""RecordTable, columns of a dataset's records without their images; and facts, the records' fields in the indexes."""

from __future__ import annotations

import contextlib
import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from picstore.arrays import I64, Array, Bools, Table
from picstore.errors import Corrupt, Damage, NotADataset, UsageError, counted, missing_extra
from picstore.storage.conditions import Condition
from picstore.storage.edits.columns import LABEL, Column, Values
from picstore.storage.edits.live_records import LiveRecords
from picstore.storage.format.container import Container
from picstore.storage.format.layout import ENCODE_PATH_SHIFT, ENCODE_PATHS, SAMPLINGS
from picstore.storage.location.resolve import map_concurrently

FACTS = np.dtype(  # facts about a record from its index entry, 26 bytes
    [
        ("id", "<i8"),
        ("label", "<i8"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("bytes", "<u4"),
        ("sampling", "u1"),
        ("encode_path", "u1"),  # Copy of the index entry's flags; only bits 2 and 3, the encode path, are used.
    ]
)
# Fields of FACTS that an index entry has under another name, with that name.
_SOURCES = {"bytes": "length", "encode_path": "flags"}


def collect_facts(
    records: Array, index: Callable[[int], Container], take: Callable[[Table], Array], dtype: np.dtype[Any]
) -> Array:
    """Call ``take`` with each container's facts, a FACTS array (n,); return the joined results, one for each record.

    ``records`` holds the number of records of each container. ``index`` reads the container with a given number,
    without its payload. A record has id -1, and 0 for other facts, if its index entry is damaged or its file missing.
    """
    collected = np.empty(int(records.sum(dtype=np.int64)), dtype)
    end = 0
    for facts in map_concurrently(partial(_facts_in, index, records), range(len(records))):
        start, end = end, end + len(facts)
        collected[start:end] = take(facts)
    return collected


def _facts_in(index: Callable[[int], Container], records: Array, number: int) -> Table:
    facts: Table = np.zeros(int(records[number]), FACTS)
    facts["id"] = -1
    with contextlib.suppress(Damage, NotADataset):  # A missing file raises NotADataset.
        container = index(number)
        for name in FACTS.names or ():
            facts[name][container.good] = container.index[_SOURCES.get(name, name)][container.good]
    return facts


def read_paths(index: Callable[[int], Container], live: LiveRecords) -> Iterator[str | None]:
    """Yield each live record's ``path`` from its extra (JSON annotations), in stored order; None if there is no path.

    Raise Corrupt if extras are damaged, and the errors of ``index``.
    """
    for number in np.flatnonzero(live.counts).tolist():
        container = index(number)
        for k in np.flatnonzero(live.mask(number)).tolist():
            yield path_of(container, k) if container.good[k] else None


def path_of(container: Container, k: int) -> str | None:
    """Return the ``path`` in the extra of record ``k``; None if there is none. Raise Corrupt if extras are damaged."""
    return path_in(container.extra_json(k))


def path_in(extra: bytes) -> str | None:
    """Return the string ``path`` in an extra, given as JSON; None if the extra is not an object with such a string."""
    try:
        value = json.loads(extra) if extra else None
    except (ValueError, RecursionError):
        return None
    path = value.get("path") if isinstance(value, dict) else None
    return path if isinstance(path, str) else None


def find_positions(stored: I64, ids: I64, *, where: str) -> I64:
    """Return the positions of the records ``ids`` in ``stored``, the ids of all records in stored order.

    Raise UsageError, which names the dataset ``where``, if an id has no record.
    """
    order = np.argsort(stored, kind="stable")
    at = np.searchsorted(stored, ids, sorter=order)
    at[at == len(stored)] = 0
    there = stored[order[at]] == ids if len(stored) else np.zeros(len(ids), dtype=np.bool_)
    if not there.all() or (ids < 0).any():
        missing = ids[~there | (ids < 0)]
        others = f" nor {counted(len(missing) - 1, 'other given id')}" if len(missing) > 1 else ""
        raise UsageError(f"{where} has no record with the id {missing[0]}{others}")
    return order[at]


class RecordTable:
    """Table of a dataset's records, without their images, in the order of ``dataset[i]``.

    The first use of a column reads the indexes of all containers, and keeps 26 bytes of memory per record. A dataset
    shares these bytes with its selections and edited versions.

    Attributes:
        names: column names: ``id``, ``label``, ``width``, ``height``, ``bytes`` (size of the JPEG), ``sampling``
            (chroma subsampling such as ``"420"``, or ``"grey"``), ``encode_path`` (``"lossless"``, ``"reencoded"``, or
            ``""`` if not known), and the dataset's own columns.
    """

    def __init__(self, count: int, facts: Callable[[], Table], columns: Mapping[str, Callable[[], Column]]) -> None:
        self._count = count
        # Function that returns the built-in columns of all records, dtype FACTS, (count,). Labels are those of the
        # dataset's edited column ``label`` if there is one.
        self._read_facts = facts
        self._columns = {name: column for name, column in columns.items() if name != LABEL}
        self.names = (*(FACTS.names or ()), *(name for name in self._columns if name not in (FACTS.names or ())))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Values:
        """Return a copy of a column: array (len(table), …) or list of strings; missing values are NaN, -1 or None."""
        if name in self._columns:
            return self._columns[name]().take(self._facts["id"])
        if name == "sampling":
            sampling: Array = np.array(SAMPLINGS)[self._facts[name]]
            return sampling
        if name == "encode_path":
            paths: Array = np.array(ENCODE_PATHS)[self._facts[name] >> ENCODE_PATH_SHIFT & 3]
            return paths
        if name not in self.names:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(self.names)}")
        fact: Array = self._facts[name].copy()
        return fact

    def to_numpy(self) -> Table:
        """Return all columns as a structured array, (len(table),), in which strings are objects."""
        columns = {name: self[name] for name in self.names}
        arrays = {name: np.array(each, object) if isinstance(each, list) else each for name, each in columns.items()}
        table: Table = np.empty(len(self), [(name, each.dtype, each.shape[1:]) for name, each in arrays.items()])
        for name, each in arrays.items():
            table[name] = each
        return table

    def to_arrow(self, names: Iterable[str] | None = None) -> Any:
        """Return the columns ``names``, by default all, as a ``pyarrow.Table`` with null for missing values.

        Raise MissingDependency if pyarrow is not installed, UsageError if a column is unknown.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise missing_extra("an Arrow table needs pyarrow", "sql") from error

        def to_arrow(name: str) -> Any:
            column = self._columns[name]() if name in self._columns else None
            if column is not None and column.ends is not None:
                return _texts_to_arrow(column, column.ends, self._facts["id"])
            values = np.asarray(self[name])
            missing = None
            if column is not None:
                missing = ~column.find_ids(self._facts["id"])[1]
            if values.ndim == 1:
                return pa.array(values, mask=missing)
            flat, size = pa.array(values.reshape(-1)), int(np.prod(values.shape[1:]))
            return pa.FixedSizeListArray.from_arrays(flat, size, mask=None if missing is None else pa.array(missing))

        return pa.table({name: to_arrow(name) for name in (self.names if names is None else names)})

    def condition(self, text: str) -> Condition:
        """Parse and check a condition in DuckDB's SQL over the columns of this table; errors: see :meth:`where`."""
        return Condition(text, self.names)

    def where(self, condition: str | Condition) -> Bools:
        """Return, for each record, whether a condition in DuckDB's SQL holds: bool (len(table),).

        A condition is an expression over a record's columns, with the functions in docs/sampling.md.

        Raises:
            UsageError: the condition cannot be evaluated, or uses two columns whose names differ only in case.
            MissingDependency: DuckDB or pyarrow is not installed.
        """
        if isinstance(condition, str):
            condition = self.condition(condition)
        if not isinstance(condition, Condition):
            raise UsageError(f"the condition is {reprlib.repr(condition)}; give a text, such as \"label = 'cat'\"")
        # Convert only the columns that the condition uses; others, such as embeddings, may be large. A condition
        # without columns gets the ids, because it needs the number of rows.
        return condition.mark(self.to_arrow(condition.columns or ["id"]))

    @cached_property
    def _facts(self) -> Table:
        return self._read_facts()


def _texts_to_arrow(column: Column, ends: I64, ids: I64) -> Any:
    """Return the strings of the records ``ids`` as a large_string array, null if missing; raise Corrupt if not UTF-8.

    Arrow takes 0.2 s to read a million captions from the column's bytes; Python strings would take 1.3 s.
    """
    import pyarrow as pa

    indices, found = column.find_ids(ids)
    offsets = pa.py_buffer(np.append(np.int64(0), ends))
    texts = pa.LargeStringArray.from_buffers(len(column.ids), offsets, pa.py_buffer(column.values))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Corrupt("a text of the column is not UTF-8", column.file) from error
    return texts.take(pa.array(indices, mask=~found))
