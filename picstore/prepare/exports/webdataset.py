"""Export to WebDataset: tars of ``<id>.jpg``, ``.cls``, ``.json`` and attachments."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from picstore.prepare.exports.base import (
    attachment_names,
    extra_object,
    present_attachments,
    suffix_of,
    to_json,
    write_classes,
)
from picstore.storage.format.record import Record


class WebDatasetWriter:
    """OUT/shard-000000.tar, … of about ``shard_size`` bytes, and OUT/classes.txt.

    ``cls`` is the label as a number, −1 for unknown; ``json`` the extra. An attachment is ``<name>.png`` or another
    extension by its first bytes, else ``<name>.bin``; its name is made safe, and distinct from others.
    """

    def __init__(self, root: Path, classes: list[str], shard_size: int, attachments: tuple[str, ...]) -> None:
        self._root, self._shard_size = root, shard_size
        self._names = attachment_names(attachments)
        self._shards = 0
        self._tar: tarfile.TarFile | None = None
        write_classes(root, classes)

    def add(self, record: Record) -> None:
        """Write the members of one sample, all into one shard."""
        if self._tar is None:
            name = f"shard-{self._shards:06d}.tar"
            self._tar = tarfile.open(self._root / name, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - stays open over many calls
        tar = self._tar
        tar.members = []  # type: ignore[attr-defined] # tarfile keeps every member otherwise
        key = f"{record.id:09d}"
        _add_member(tar, f"{key}.jpg", record.jpeg)
        _add_member(tar, f"{key}.cls", b"%d" % record.label)
        if extra := extra_object(record):
            _add_member(tar, f"{key}.json", to_json(extra))
        for name, blob in present_attachments(record).items():
            _add_member(tar, f"{key}.{self._names[name].lower()}.{suffix_of(blob)}", blob)
        if tar.offset >= self._shard_size:
            self._end_shard()

    def _end_shard(self) -> None:
        if self._tar is not None:
            self._tar.close()
            self._tar = None
            self._shards += 1

    def close(self) -> list[str]:
        """Complete the last shard."""
        self._end_shard()
        return []


def _add_member(tar: tarfile.TarFile, name: str, data: bytes | memoryview) -> None:
    """Add a member without time or owner, so that equal data sets give equal tars."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
