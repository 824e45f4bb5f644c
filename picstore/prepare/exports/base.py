"""ExportWriter, the interface of export formats, and what they share: safe names, JSON, classes.txt."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from picstore.storage.format.record import Record
from picstore.storage.location.resolve import PARTIAL

MAX_SHARD_SIZE = 1 << 31  # bytes; MDS has offsets of 32 bits

_UNSAFE = re.compile(r"[^\w\-.+=@ ]+")
_MAX_NAME = 100  # characters, at most 400 bytes, cut to 200; file systems allow 255
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # names that Windows reserves
_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"II*\0": "tif", b"MM\0*": "tif", b"GIF8": "gif", b"BM": "bmp"}


class ExportWriter(Protocol):
    """Writes the records of a data set, one after the other, in one format."""

    def add(self, record: Record) -> None:
        """Write one record."""

    def close(self) -> list[str]:
        """Complete the files; returns messages for the user."""


def safe_name(text: str) -> str:
    """Name for a file or folder: it leads nowhere else, is not hidden, and every file system takes it."""
    name = _UNSAFE.sub("_", text)[:_MAX_NAME].encode()[:200].decode("utf-8", "ignore").strip(" .") or "_"
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def suffix_of(blob: bytes | memoryview) -> str:
    """Extension by the first bytes; ``bin`` for anything but an image."""
    head = bytes(blob[:4])
    return next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), "bin")


def extra_object(record: Record) -> dict[str, Any]:
    """The extra as an object; any other value as the member ``extra``."""
    extra = {} if record.extra is None else record.extra
    return extra if isinstance(extra, dict) else {"extra": extra}


def present_attachments(record: Record) -> Mapping[str, bytes | memoryview]:
    """Attachments of a record that are not empty."""
    return {name: blob for name, blob in record.attachments.items() if len(blob)}


def to_json(value: Any) -> bytes:
    """Encode as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def rename_partial(partial: Path) -> None:
    """Sync a complete file and remove PARTIAL from its name."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(str(partial).removesuffix(PARTIAL))


def write_classes(root: Path, classes: list[str]) -> None:
    """Write classes.txt, one name per line in the order of labels, for `convert --classes`."""
    if classes:
        text = "".join(" ".join(name.split()) + "\n" for name in classes)
        (root / "classes.txt").write_text(text, encoding="utf-8")
