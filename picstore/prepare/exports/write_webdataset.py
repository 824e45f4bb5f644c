"""Export to WebDataset: tars of ``<id>.jpg``, ``.cls``, ``.json`` and attachments."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from picstore.prepare.exports.export_format import (
    ExportFormat,
    Outline,
    Part,
    close_gaps,
    durable_file,
    extra_object,
    present_attachments,
    suffix_of,
    to_json,
)
from picstore.prepare.exports.safe_names import attachment_names
from picstore.storage.format.record import Record

_BLOCK = 512  # A tar pads headers and data to a multiple of this number of bytes.


@dataclass(frozen=True, slots=True)
class WebDatasetFormat(ExportFormat):
    """Export format of OUT/shard-000000.tar, … of about ``shard_size`` bytes, and OUT/classes.txt.

    ``cls`` is the label as a number, −1 for unknown; ``json`` is the extra (JSON metadata). An attachment is
    ``<name>.bin``, or has an image's suffix, such as ``<name>.png``, if its first bytes are an image's. Attachment
    names are made safe and distinct.
    """

    EXCEED = True

    def describe(self, outline: Outline) -> int:
        """Return the number of bytes that a record's sample takes in a tar: its members with headers and padding."""
        key, names = _key(outline), attachment_names(self.attachments)
        sizes = {f"{key}.jpg": outline.jpeg, f"{key}.cls": len(b"%d" % outline.label)}
        if outline.extra:
            sizes[f"{key}.json"] = len(to_json(outline.extra))
        # ``bin`` stands for the extension that the attachment will get: all have three letters, so sizes are equal.
        sizes |= {f"{key}.{names[name].lower()}.bin": size for name, size in outline.attachments.items()}
        return sum(_member_size(name, size) for name, size in sizes.items())

    def write(self, part: Part, records: Iterable[Record | None]) -> bool | None:
        names = attachment_names(self.attachments)
        with ExitStack() as opened:
            tar: tarfile.TarFile | None = None
            for record in records:
                if record is None:
                    continue
                if tar is None:
                    file = opened.enter_context(durable_file(self._path(part.number), self.root))
                    tar = opened.enter_context(tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT))
                _add_sample(tar, record, names)
        return None if tar is None else True

    def _path(self, number: int) -> Path:
        return self.root / f"shard-{number:06d}.tar"

    def close(self, written: Sequence[bool | None]) -> list[str]:
        close_gaps(self._path, written)
        return []


def _key(record: Record | Outline) -> str:
    return f"{record.id:09d}"


def _add_sample(tar: tarfile.TarFile, record: Record, names: dict[str, str]) -> None:
    tar.members = []  # type: ignore[attr-defined] # tarfile keeps every member otherwise
    key = _key(record)
    _add_member(tar, f"{key}.jpg", record.jpeg)
    _add_member(tar, f"{key}.cls", b"%d" % record.label)
    if extra := extra_object(record):
        _add_member(tar, f"{key}.json", to_json(extra))
    for name, blob in present_attachments(record).items():
        _add_member(tar, f"{key}.{names[name].lower()}.{suffix_of(blob)}", blob)


def _add_member(tar: tarfile.TarFile, name: str, data: bytes | memoryview) -> None:
    """Add a member to a tar without time or owner, so that equal datasets give equal tars."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _member_size(name: str, size: int) -> int:
    """Return the bytes of a tar member: data, padding, and header (one block unless the name needs pax records)."""
    short = name.isascii() and len(name) <= tarfile.LENGTH_NAME
    header = _BLOCK if short else len(tarfile.TarInfo(name).tobuf(tarfile.PAX_FORMAT))
    return header + -(-size // _BLOCK) * _BLOCK
