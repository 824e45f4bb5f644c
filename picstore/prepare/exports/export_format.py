"""ExportFormat, the interface of export formats, and what they share: safe names, JSON, classes.txt."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from picstore.storage.class_names import to_lines
from picstore.storage.format.record import Record
from picstore.storage.location.abstract_location import PARTIAL
from picstore.storage.location.atomic_file import partial_path, sync

CLASSES = "classes.txt"
MAX_SHARD_SIZE = 1 << 31  # bytes; MDS has offsets of 32 bits

_UNSAFE = re.compile(r"[^\w\-.+=@ ]+")
_MAX_NAME = 100  # characters, at most 400 bytes, cut to 200; file systems allow 255
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # names that Windows reserves
_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"II*\0": "tif", b"MM\0*": "tif", b"GIF8": "gif", b"BM": "bmp"}


@dataclass(frozen=True, slots=True)
class Outline:
    """A record as its container's index describes it: all but the bytes of image and attachments.

    Attributes:
        jpeg: size of the image.
        attachments: sizes of the attachments that are not empty, by name.
    """

    id: int
    label: int
    extra: dict[str, Any]
    jpeg: int
    attachments: dict[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records that one call writes.

    Attributes:
        number: of the part, 0 for the first.
        count: of its records.
        names: in a folder, the records' paths without ``.jpg``; else empty.
    """

    number: int
    count: int
    names: tuple[str, ...] = ()


class ExportFormat(Protocol):
    """One format, in which a data set is written part by part.

    The outlines alone decide which records make a part. Damage that only reading shows makes a part smaller, so parts
    are written in any order, each with the bytes that it has in any other export.
    """

    def begin(self) -> None:
        """Write the files and make the folders that depend on no record."""

    def describe(self, outline: Outline) -> Any:
        """Describe a record for :meth:`divide`; runs in tasks."""

    def divide(self, described: Sequence[Any]) -> list[Part]:
        """Divide the records into parts."""

    def write(self, part: Part, records: Iterable[Record | None]) -> Any:
        """Write a part, durable, whose unreadable records are None; runs in tasks, twice if one is taken for dead.

        Returns what :meth:`close` needs to know; None if nothing was written, as no record is readable.
        """

    def close(self, written: Sequence[Any]) -> list[str]:
        """Complete the export from the results of all parts; returns messages for the user."""


def shard_parts(sizes: Iterable[int], shard_size: int, *, exceed: bool) -> list[Part]:
    """Make each shard a part. With ``exceed`` its last sample may reach beyond ``shard_size``, else none does."""
    counts: list[int] = []
    held = 0
    for size in sizes:
        full = held >= shard_size if exceed else held + size > shard_size
        if full or not counts:
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += size
    return [Part(*each) for each in enumerate(counts)]


def close_gaps(path: Callable[[int], Path], written: Sequence[Any]) -> None:
    """Number files through where parts have none, as all of their records are damaged."""
    there = (number for number, result in enumerate(written) if result is not None)
    for number, old in enumerate(there):
        if old != number:
            path(old).rename(path(number))


@contextlib.contextmanager
def durable_file(path: Path, root: Path) -> Iterator[BinaryIO]:
    """Write a file that appears whole and durable: a task that is taken for dead may still write the same file.

    Until then it lies in ``root`` under a unique name.
    """
    partial = partial_path(root / path.name)
    with partial.open("wb") as file:
        yield file
        file.flush()
        sync(file.fileno())
    partial.replace(path)


def remove_partial_files(root: Path) -> None:
    """Remove what tasks that died have left of :func:`durable_file`."""
    for path in root.glob(f"*{PARTIAL}"):
        if path.is_file():
            path.unlink()


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
    """Write classes.txt, one name per line in the order of labels, for `convert --classes`; see :func:`to_lines`."""
    if classes:
        (root / CLASSES).write_text(to_lines(classes), encoding="utf-8", newline="")
