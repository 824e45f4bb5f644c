"""ExportWriter, the interface of export formats, and what they share: safe names, JSON, classes.txt."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from picstore.storage.format.record import Record

CLASSES = "classes.txt"
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


class UsedNames:
    """Names in one folder or archive, equal also where a file system ignores case or normalizes Unicode.

    Keeps 8 bytes of a hash of each name, some 70 bytes in memory: 1.3 million names take 90 MB.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._hashes = {_name_hash(name) for name in names}

    def take(self, *names: str) -> bool:
        """Take these names, which differ from each other; returns False, and takes none, if one is in use."""
        hashes = set(map(_name_hash, names))
        if self._hashes & hashes:
            return False
        self._hashes |= hashes
        return True


def _name_hash(name: str) -> int:
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
    return int.from_bytes(hashlib.blake2b(folded.encode(), digest_size=8).digest(), "little")


def attachment_names(attachments: Iterable[str]) -> dict[str, str]:
    """Safe names of a data set's attachments; a number is added to equal ones."""
    used = UsedNames()
    names = {}
    for attachment in attachments:
        safe = name = safe_name(attachment)
        count = 1
        while not used.take(name):
            count += 1
            name = f"{safe}-{count}"
        names[attachment] = name
    return names


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
    """Encode as compact JSON; halves of UTF-16 pairs become JSON's escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def write_classes(root: Path, classes: list[str]) -> None:
    """Write classes.txt, one name per line in the order of labels, for `convert --classes`."""
    if classes:
        text = "".join(" ".join(name.split()) + "\n" for name in classes)
        (root / CLASSES).write_text(text, encoding="utf-8", errors="backslashreplace")
