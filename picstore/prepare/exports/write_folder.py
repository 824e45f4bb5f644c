"""Export to class folders, with a table records.jsonl of labels, extras and attachments."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from picstore.prepare.exports.export_format import (
    CLASSES,
    ExportFormat,
    Outline,
    Part,
    durable_file,
    extra_object,
    present_attachments,
    shard_parts,
    to_json,
)
from picstore.prepare.exports.safe_names import UsedNames, attachment_names, safe_name
from picstore.storage.format.record import Record
from picstore.storage.location.atomic_file import sync

TABLE = "records.jsonl"
_PART_SIZE = 32 << 20  # bytes of JPEGs that one call of ``write`` writes


class _Wish(NamedTuple):
    """Properties of a record that determine its path in the export.

    ``stem`` is the preferred file name without extension, ``size`` the JPEG's size in bytes.
    """

    label: int
    id: int
    stem: str
    attachments: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class FolderFormat(ExportFormat):
    """Export format of OUT/<class>/<original name>.jpg, OUT/records.jsonl and OUT/classes.txt.

    A JPEG's name is the last component of ``path`` in the record's extra (JSON metadata), made safe; if that name is
    taken, the record's id is added. Attachments are hidden files, ``.<name>.<attachment>.bin``, because torchvision's
    ImageFolder takes any file with an image's suffix, even if hidden. All names differ even on a file system that
    ignores case or normalizes Unicode.
    """

    def describe(self, outline: Outline) -> _Wish:
        stem = _stem(outline.extra, outline.id)
        return _Wish(outline.label, outline.id, stem, tuple(outline.attachments), outline.jpeg)

    def divide(self, described: Sequence[_Wish]) -> list[Part]:
        """Create the class folders, choose a different path for each record, and return parts with these paths."""
        folders = self._folders(wish.label for wish in described)
        for folder in folders.values():
            (self.root / folder).mkdir()
        hidden, used = attachment_names(self.attachments), UsedNames()
        names = [_free_path(wish, folders[wish.label], hidden, used) for wish in described]
        parts, end = [], 0
        for part in shard_parts((wish.size for wish in described), _PART_SIZE, exceed=True):
            end += part.count
            parts.append(Part(part.number, part.count, tuple(names[end - part.count : end])))
        return parts

    def _folders(self, labels: Iterable[int]) -> dict[int, str]:
        """Return folder names by label: first all classes, then other labels in the order of their first records."""
        used, folders = UsedNames((TABLE, CLASSES)), {}
        for label in dict.fromkeys([*range(len(self.classes)), *labels]):
            name = "unlabelled" if label < 0 else f"{label:04d}"
            if 0 <= label < len(self.classes):
                name = safe_name(self.classes[label])
            while not used.take(name):
                name = f"{name}-{label}"
            folders[label] = name
        return folders

    def write(self, part: Part, records: Iterable[Record | None]) -> bool | None:
        """Write a part's JPEGs and attachments, and its lines of records.jsonl to a file that :meth:`close` joins.

        All files are synced at the end, because syncing file by file takes longer.
        """
        hidden = attachment_names(self.attachments)
        rows: list[dict[str, Any]] = []
        files: list[Path] = []
        for path, record in zip(part.names, records, strict=True):
            if record is None:
                continue
            blobs = present_attachments(record)
            row: dict[str, Any] = {"path": f"{path}.jpg", "label": record.label, "extra": extra_object(record)}
            if blobs:
                row["attachments"] = {field: _hidden_path(path, hidden[field]) for field in blobs}
            rows.append(row)
            names = [row["path"], *row.get("attachments", {}).values()]
            for name, data in zip(names, [record.jpeg, *blobs.values()], strict=True):
                files.append(self.root / name)
                files[-1].write_bytes(data)
        for file in files:
            with file.open("rb") as written:
                sync(written.fileno())
        with durable_file(self._piece(part.number), self.root) as piece:
            piece.writelines(to_json(row) + b"\n" for row in rows)
        return True if rows else None

    def _piece(self, number: int) -> Path:
        return self.root / f"{TABLE}.{number}"

    def close(self, written: Sequence[bool | None]) -> list[str]:
        """Join the parts' lines to records.jsonl.

        Return messages if readers that number classes by sorted folder name would get other labels or names.
        """
        with (self.root / TABLE).open("wb") as table:
            for piece in map(self._piece, range(len(written))):
                with piece.open("rb") as rows:
                    shutil.copyfileobj(rows, table)
                piece.unlink()
        names = list(self._folders(()).values())
        there = {path.name for path in self.root.iterdir() if path.is_dir()}
        remarks = []
        if names != sorted(names) or there != set(names):
            remarks.append(f"readers of folders number classes by sorted name; labels as they were stand in {TABLE}")
        changed = [(name, folder) for name, folder in zip(self.classes, names, strict=True) if name != folder]
        if changed:
            count = "1 class has a folder" if len(changed) == 1 else f"{len(changed):,} classes have folders"
            name, folder = changed[0]
            remarks.append(f"{count} of another name, such as {folder!r} for {name!r}; the names stand in {CLASSES}")
        return remarks


def _free_path(wish: _Wish, folder: str, hidden: dict[str, str], used: UsedNames) -> str:
    """Return an unused path, without ``.jpg``, for a record; mark the names of its JPEG and attachments as used."""
    stem, tries = wish.stem, 0
    while True:
        path = f"{folder}/{stem}"
        if used.take(f"{path}.jpg", *(_hidden_path(path, hidden[field]) for field in wish.attachments)):
            return path
        tries += 1
        stem = f"{wish.stem}-{wish.id}" if tries == 1 else f"{wish.stem}-{wish.id}-{tries}"


def _hidden_path(path: str, attachment: str) -> str:
    folder, _, stem = path.partition("/")
    return f"{folder}/.{stem}.{attachment}.bin"


def _stem(extra: dict[str, Any], id_: int) -> str:
    """Return a record's original file name without extension, made safe; its id in nine digits if it has no path."""
    path = extra.get("path")
    if not isinstance(path, str):
        return f"{id_:09d}"
    stem = safe_name(path.replace("\\", "/").rpartition("/")[2])
    return stem.rpartition(".")[0] or stem
