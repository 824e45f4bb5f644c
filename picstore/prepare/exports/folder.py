"""Export to class folders, with a table records.jsonl of labels, extras and attachments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from picstore.prepare.exports.base import (
    extra_object,
    present_attachments,
    rename_partial,
    safe_name,
    to_json,
    write_classes,
)
from picstore.storage.format.record import Record
from picstore.storage.location.resolve import PARTIAL

TABLE = "records.jsonl"


class FolderWriter:
    """OUT/<class>/<original name>.jpg, OUT/records.jsonl and OUT/classes.txt.

    Names are the last part of the extra's ``path``, made safe; the id is added to equal ones. Attachments are hidden
    files, ``.<name>.<attachment>``, which readers of folders skip.
    """

    def __init__(self, root: Path, classes: list[str]) -> None:
        self._root = root
        self._classes = classes
        self._folders: dict[int, str] = {}
        self._used_names: set[str] = set()
        for label in range(len(classes)):
            self._folder(label)
        write_classes(root, classes)
        self._table = (root / (TABLE + PARTIAL)).open("wb")

    def _folder(self, label: int) -> str:
        """Folder of a label, made when it is first asked for."""
        if label not in self._folders:
            name = "unlabelled" if label < 0 else f"{label:04d}"
            if 0 <= label < len(self._classes):
                name = safe_name(self._classes[label])
            while name.casefold() in self._used_names:  # some file systems ignore case
                name = f"{name}-{label}"
            self._used_names.add(name.casefold())
            (self._root / name).mkdir()
            self._folders[label] = name
        return self._folders[label]

    def add(self, record: Record) -> None:
        """Write the JPEG, its attachments, and a line of the table."""
        folder, extra = self._folder(record.label), extra_object(record)
        name = self._write_jpeg(folder, _stem(extra, record.id), record)
        row: dict[str, Any] = {"path": f"{folder}/{name}", "label": record.label, "extra": extra}
        attachments = {}
        for field, blob in present_attachments(record).items():
            hidden = f".{name.removesuffix('.jpg')}.{safe_name(field)}"
            with (self._root / folder / hidden).open("xb") as file:
                file.write(blob)
            attachments[field] = f"{folder}/{hidden}"
        if attachments:
            row["attachments"] = attachments
        self._table.write(to_json(row) + b"\n")

    def _write_jpeg(self, folder: str, stem: str, record: Record) -> str:
        """Write the JPEG under a new name and return the name."""
        tries = 0
        while True:
            name = stem if tries == 0 else f"{stem}-{record.id}" if tries == 1 else f"{stem}-{record.id}-{tries}"
            try:
                with (self._root / folder / f"{name}.jpg").open("xb") as file:
                    file.write(record.jpeg)
            except FileExistsError:
                tries += 1
            else:
                return f"{name}.jpg"

    def close(self) -> list[str]:
        """Complete the table; warns if folders sort otherwise than labels."""
        self._table.close()
        rename_partial(self._root / (TABLE + PARTIAL))
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
