"""Export to class folders, with a table records.jsonl of labels, extras and attachments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from picstore.prepare.exports.base import (
    CLASSES,
    UsedNames,
    attachment_names,
    extra_object,
    present_attachments,
    safe_name,
    to_json,
    write_classes,
)
from picstore.storage.format.record import Record

TABLE = "records.jsonl"


class FolderWriter:
    """OUT/<class>/<original name>.jpg, OUT/records.jsonl and OUT/classes.txt.

    Names are the last part of the extra's ``path``, made safe; the id is added to equal ones. Attachments are hidden
    files, ``.<name>.<attachment>``, which readers of folders skip. No two names are equal on a file system that ignores
    case or normalizes Unicode.
    """

    def __init__(self, root: Path, classes: list[str], attachments: tuple[str, ...]) -> None:
        self._root = root
        self._classes = classes
        self._attachments = attachment_names(attachments)
        self._folders: dict[int, str] = {}
        self._used_folders = UsedNames((TABLE, CLASSES))
        self._used_files = UsedNames()
        for label in range(len(classes)):
            self._folder(label)
        write_classes(root, classes)
        self._table = (root / TABLE).open("wb")

    def _folder(self, label: int) -> str:
        """Folder of a label, made when it is first asked for."""
        if label not in self._folders:
            name = "unlabelled" if label < 0 else f"{label:04d}"
            if 0 <= label < len(self._classes):
                name = safe_name(self._classes[label])
            while not self._used_folders.take(name):
                name = f"{name}-{label}"
            (self._root / name).mkdir()
            self._folders[label] = name
        return self._folders[label]

    def add(self, record: Record) -> None:
        """Write the JPEG, its attachments, and a line of the table."""
        folder, extra = self._folder(record.label), extra_object(record)
        blobs = present_attachments(record)
        stem = self._free_stem(folder, _stem(extra, record.id), record.id, list(blobs))
        row: dict[str, Any] = {"path": f"{folder}/{stem}.jpg", "label": record.label, "extra": extra}
        self._write(row["path"], record.jpeg)
        if blobs:
            row["attachments"] = {field: f"{folder}/{self._hidden(stem, field)}" for field in blobs}
        for field, blob in blobs.items():
            self._write(row["attachments"][field], blob)
        self._table.write(to_json(row) + b"\n")

    def _free_stem(self, folder: str, stem: str, id_: int, fields: list[str]) -> str:
        """Stem under which the names of a JPEG and of its attachments are free; takes them."""
        name, tries = stem, 0
        while not self._used_files.take(
            f"{folder}/{name}.jpg", *(f"{folder}/{self._hidden(name, field)}" for field in fields)
        ):
            tries += 1
            name = f"{stem}-{id_}" if tries == 1 else f"{stem}-{id_}-{tries}"
        return name

    def _hidden(self, stem: str, attachment: str) -> str:
        return f".{stem}.{self._attachments[attachment]}"

    def _write(self, path: str, data: bytes | memoryview) -> None:
        with (self._root / path).open("xb") as file:
            file.write(data)

    def close(self) -> list[str]:
        """Complete the table; warns if folders sort otherwise than labels."""
        self._table.close()
        names = [self._folders[label] for label in range(len(self._classes))]
        if names == sorted(names) and set(self._folders) == set(range(len(names))):
            return []
        return [f"readers of folders number classes by sorted name; labels as they were stand in {TABLE}"]


def _stem(extra: dict[str, Any], id_: int) -> str:
    """Original name without folders and extension."""
    path = extra.get("path")
    if not isinstance(path, str):
        return f"{id_:09d}"
    stem = safe_name(path.replace("\\", "/").rpartition("/")[2])
    return stem.rpartition(".")[0] or stem
