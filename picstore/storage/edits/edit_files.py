"""Files of a dataset's edits, saved or unsaved: columns and deleted records (docs/format.md, "Edits")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Array
from picstore.errors import UsageError
from picstore.storage.edits.columns import LABEL, Column, FileBytes, make_column, read_column
from picstore.storage.edits.edit_entries import (
    Edits,
    NpyFile,
    pack_npy_file,
    parse_npy_file,
    read_npy_file,
    write_npy_file,
)
from picstore.storage.format.record import Record
from picstore.storage.location.resolve import Root, WritableLocation

KeptColumns = dict[NpyFile, Column]


class EditFiles:
    """Reader of the edits of one version of a dataset; it also builds the edits of the next version.

    Args:
        root: folder of the dataset.
        edits: edits that the manifest lists.
        unsaved: contents of files that are not written yet, by file name.
        kept: columns that were read so far, by the file of their values; versions of a dataset may share this dict.
    """

    def __init__(self, root: Root, edits: Edits, unsaved: FileBytes, *, kept: KeptColumns) -> None:
        self.edits, self.unsaved = edits, unsaved
        self._root, self._kept = root, kept

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.edits.columns)

    def column(self, name: str) -> Column:
        """Return a column, read on first use; raise UsageError if the name is unknown."""
        entry = next((entry for entry in self.edits.columns if entry.name == name), None)
        if entry is None:
            raise UsageError(f"{self._root} has no column {name!r}; it has {', '.join(self.columns) or 'none'}")
        if entry.values not in self._kept:
            self._kept[entry.values] = read_column(entry, self._read)
        return self._kept[entry.values]

    def labels(self, ids: npt.NDArray[np.integer[Any]], labels: I64) -> I64:
        """Return the label of each record in ``ids``: its value in the column ``label``, else that in ``labels``."""
        changed: I64 = labels.copy()
        if LABEL in self.columns:
            indices, found = self.column(LABEL).find_ids(ids.astype(np.int64))
            changed[found] = self.column(LABEL).values[indices[found]]
        return changed

    def with_values(self, record: Record) -> Record:
        """Add the columns' values to a record, and return it; a value in the column ``label`` becomes its label."""
        if not self.columns:
            return record
        values = {name: self.column(name).get(record.id) for name in self.columns}
        values = {name: value for name, value in values.items() if value is not None}
        return replace(record, label=values.pop(LABEL, record.label), columns=values)

    def deleted(self) -> I64:
        """Return the indices of the deleted records among all stored records, ascending."""
        tombstones = self.edits.tombstones
        return np.zeros(0, np.int64) if tombstones is None else self._read(tombstones)

    def with_deleted(self, deleted: I64) -> tuple[Edits, FileBytes]:
        """Return edits that delete exactly the stored records at the indices ``deleted``, and the new files by name."""
        npy_file, raw = pack_npy_file(deleted.astype("<i8"))
        tombstones = npy_file if len(deleted) else None
        return replace(self.edits, deleted=len(deleted), tombstones=tombstones), {npy_file.file: raw}

    def with_columns(
        self, columns: Mapping[str, Sequence[Any] | Array], ids: I64, *, keep: bool
    ) -> tuple[Edits, FileBytes]:
        """Add or replace columns, with values for the records ``ids``; return the new edits and new files by name.

        If ``keep`` is true, records outside of ``ids`` keep their old values. Raise UsageError if a name or value is
        invalid.
        """
        entries, files = {entry.name: entry for entry in self.edits.columns}, {}
        for name, values in columns.items():
            owners: I64 = ids
            if keep and name in self.columns:
                owners, values = self.column(name).joined(ids, values)
            entries[name], new_files = make_column(name, owners, values)
            files.update(new_files)
        return replace(self.edits, columns=tuple(entries[name] for name in sorted(entries))), files

    def all_columns(self) -> tuple[Edits, FileBytes]:
        """Return edits that give a dataset's copy all columns but no deletions; and the columns' files by name."""
        edits = Edits(columns=self.edits.columns)
        return edits, {each.file: self._read_bytes(each) for each in edits.npy_files}

    def columns_of(self, ids: I64) -> tuple[Edits, FileBytes]:
        """Return the edits of a copied dataset that has only the records ``ids``, and the bytes of new files by name.

        A column without a value for any of the records is left out.
        """
        entries, files = [], {}
        for name in self.columns:
            owners, values = self.column(name).of(ids)
            if len(owners):
                entry, new_files = make_column(name, owners, values)
                entries.append(entry)
                files.update(new_files)
        return Edits(columns=tuple(entries)), files

    def write(self, root: WritableLocation) -> None:
        for npy_file in self.edits.npy_files:
            if npy_file.file in self.unsaved:
                write_npy_file(root, npy_file, self.unsaved[npy_file.file])

    def _read_bytes(self, npy_file: NpyFile) -> bytes:
        raw = self.unsaved.get(npy_file.file)
        return (self._root / npy_file.file).read_all(npy_file.bytes) if raw is None else raw

    def _read(self, npy_file: NpyFile) -> Array:
        raw = self.unsaved.get(npy_file.file)
        return read_npy_file(self._root, npy_file) if raw is None else parse_npy_file(raw, file=npy_file.file)
