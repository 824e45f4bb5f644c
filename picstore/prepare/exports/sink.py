"""What all formats of an export share: what a sink is, and names that are safe in any folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from picstore.storage.format.record import Record
from picstore.storage.location.resolve import PARTIAL

CLASSES = "classes.txt"
MAX_SHARD = 1 << 31  # bytes; MDS has offsets of 32 bits

_UNSAFE = re.compile(r"[^\w\-.+=@ ]+")
_LONGEST = 100  # characters of a name, at most 400 bytes; file systems allow 255, the rest is cut
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # by Windows
_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"II*\0": "tif", b"MM\0*": "tif", b"GIF8": "gif", b"BM": "bmp"}


class Sink(Protocol):
    """Takes the records of a data set, one after the other."""

    def add(self, record: Record) -> None:
        """Write one."""

    def close(self) -> list[str]:
        """Finish; returns what the user should hear."""


def safe_name(text: str) -> str:
    """A name for a file or folder: nothing that leads elsewhere, hides it, or that a file system refuses."""
    name = _UNSAFE.sub("_", text)[:_LONGEST].encode()[:200].decode("utf-8", "ignore").strip(" .") or "_"
    return f"_{name}" if _RESERVED.fullmatch(name) else name


def suffix_of(blob: bytes | memoryview) -> str:
    """An extension by the first bytes; ``bin`` for what is no image."""
    head = bytes(blob[:4])
    return next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), "bin")


def extra_object(record: Record) -> dict[str, Any]:
    """The extra as an object; any other value under the name ``extra``."""
    extra = record.extra
    if extra is None:
        return {}
    return extra if isinstance(extra, dict) else {"extra": extra}


def present(record: Record) -> Mapping[str, bytes | memoryview]:
    """The attachments that a record has."""
    return {name: blob for name, blob in record.attachments.items() if len(blob)}


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def finish(partial: Path) -> None:
    """Give a file that is complete its name, durably."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(str(partial).removesuffix(PARTIAL))


def write_classes(root: Path, classes: list[str]) -> None:
    """One name a line, in the order of labels, for `convert --classes`."""
    if classes:
        text = "".join(" ".join(name.split()) + "\n" for name in classes)
        (root / CLASSES).write_text(text, encoding="utf-8")
