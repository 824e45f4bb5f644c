"""Entries of the manifest for edits of a finished data set (docs/format.md, "Edits")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from picstore.storage.edits.npy_files import NpyFile
from picstore.storage.location.resolve import INDEX


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """Files of a column: values by record id.

    Attributes:
        kind: ``"numbers"`` or ``"text"``.
        ids: int64 (n,), ascending.
        values: (n, …), or the bytes of all texts.
        ends: int64 (n,), end of each text in ``values``; None for numbers.
    """

    name: str
    kind: str
    ids: NpyFile
    values: NpyFile
    ends: NpyFile | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ColumnEntry:
        """Make the entry of a column of its checked JSON."""
        ids, values, ends = (document[name] for name in ("ids", "values", "ends"))
        return cls(
            name=document["name"],
            kind=document["kind"],
            ids=NpyFile.parse(ids),
            values=NpyFile.parse(values),
            ends=None if ends is None else NpyFile.parse(ends),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Changes to a data set after it was made; its files of images never change.

    Attributes:
        index: name of the index: ``picstore.idx``, or one in ``edits/`` once rows were appended.
        deleted: number of deleted records.
        tombstones: numbers of the deleted records in stored order, int64 (deleted,), ascending; None for none.
        columns: values by id; one called ``label`` replaces the records' labels.
    """

    index: str = INDEX
    deleted: int = 0
    tombstones: NpyFile | None = None
    columns: tuple[ColumnEntry, ...] = ()

    @property
    def npy_files(self) -> list[NpyFile]:
        """All .npy files of tombstones and columns."""
        listed = [self.tombstones]
        for entry in self.columns:
            listed += [entry.ids, entry.values, entry.ends]
        return [each for each in listed if each is not None]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Edits:
        """Make the edits of a manifest of their checked JSON."""
        tombstones = document["tombstones"]
        return cls(
            index=document["index"],
            deleted=document["deleted"],
            tombstones=None if tombstones is None else NpyFile.parse(tombstones),
            columns=tuple(ColumnEntry.parse(entry) for entry in document["columns"]),
        )
