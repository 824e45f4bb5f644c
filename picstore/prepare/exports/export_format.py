"""ExportFormat, the base class of export formats; writing of durable files; and JSON for all formats."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from picstore.errors import UsageError
from picstore.storage.class_names import to_lines
from picstore.storage.format.record import Record
from picstore.storage.location.abstract_location import PARTIAL
from picstore.storage.location.atomic_file import partial_path, sync

CLASSES = "classes.txt"
MAX_SHARD_SIZE = 1 << 31  # largest shard size in bytes that a user may give, because MDS has offsets of 32 bits

_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"II*\0": "tif", b"MM\0*": "tif", b"GIF8": "gif", b"BM": "bmp"}


@dataclass(frozen=True, slots=True)
class Outline:
    """Record as described by the index of its container (block of records), without image and attachments.

    Attributes:
        jpeg: size of the image in bytes.
        attachments: sizes in bytes of the attachments that are not empty, by name.
    """

    id: int
    label: int
    extra: dict[str, Any]
    jpeg: int
    attachments: dict[str, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records that one call of :meth:`ExportFormat.write` writes.

    Attributes:
        number: number of the part, from 0.
        count: number of records.
        names: paths of the records in the export, without ``.jpg``, in the format ``folder``; else empty.
    """

    number: int
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportFormat(ABC):
    """Format in which a dataset is exported, part by part; a part is a run of consecutive records, usually one file.

    Records are divided into parts before any image is read; a record whose image then proves damaged is left out. So
    parts can be written in any order, and every export of a dataset writes the same bytes.

    Attributes:
        root: folder of the export.
        classes: class names by label.
        shard_size: approximate size of a tar, shard or Parquet file in bytes.
    """

    # Names of the columns that the format itself writes; no attachment may have one of these names.
    COLUMNS: ClassVar[Collection[str]] = ()
    # Whether a record that would end beyond ``shard_size`` still belongs to the shard, or begins the next shard.
    EXCEED: ClassVar[bool] = False

    root: Path
    classes: list[str]
    shard_size: int
    attachments: tuple[str, ...]

    def begin(self) -> None:
        """Write classes.txt; raise UsageError if an attachment has the name of one of the format's columns."""
        if taken := set(self.COLUMNS) & set(self.attachments):
            raise UsageError(f"attachment {min(taken)!r} has the name of a column of the format; choose another format")
        if self.classes:
            (self.root / CLASSES).write_text(to_lines(self.classes), encoding="utf-8", newline="")

    @abstractmethod
    def describe(self, outline: Outline) -> Any:
        """Return a record's properties that :meth:`divide` needs, such as the size; called in a worker process."""

    def divide(self, described: Sequence[Any]) -> list[Part]:
        """Divide records, as :meth:`describe` described them, into parts, by default of about ``shard_size`` bytes."""
        return shard_parts(described, self.shard_size, exceed=self.EXCEED)

    @abstractmethod
    def write(self, part: Part, records: Iterable[Record | None]) -> Any:
        """Write a part's records durably, in a worker process; in ``records``, None stands for an unreadable record.

        If the worker dies, another process calls this method again for the part.

        Returns:
            What :meth:`close` needs to know about the part; None if no record was readable and nothing was written.
        """

    @abstractmethod
    def close(self, written: Sequence[Any]) -> list[str]:
        """Complete the export, given the results of :meth:`write` for all parts; return messages for the user."""


def shard_parts(sizes: Iterable[int], shard_size: int, *, exceed: bool) -> list[Part]:
    """Divide records of given sizes in bytes into shards.

    A shard ends before the record that would make the shard exceed ``shard_size``; with ``exceed``, after the record
    with which it reaches ``shard_size``.
    """
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
    """Rename files so that their numbers are consecutive: parts whose result in ``written`` is None have no file."""
    there = (number for number, result in enumerate(written) if result is not None)
    for number, old in enumerate(there):
        if old != number:
            path(old).rename(path(number))


@contextlib.contextmanager
def durable_file(path: Path, root: Path) -> Iterator[BinaryIO]:
    """Open a file for writing, which appears at ``path``, complete and durable, at the end of the ``with`` block.

    Until then the file has a unique name in ``root``, because two processes may write it at a time, if a task is
    wrongly taken for dead and run again.
    """
    partial = partial_path(root / path.name)
    with partial.open("wb") as file:
        yield file
        file.flush()
        sync(file.fileno())
    partial.replace(path)


def remove_partial_files(root: Path) -> None:
    """Remove unfinished files of :func:`durable_file` that dead tasks have left in ``root``."""
    for path in root.glob(f"*{PARTIAL}"):
        if path.is_file():
            path.unlink()


def suffix_of(blob: bytes | memoryview) -> str:
    """Return the file extension for the content ``blob``, by its first bytes; ``bin`` unless it is an image."""
    head = bytes(blob[:4])
    return next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), "bin")


def extra_object(record: Record) -> dict[str, Any]:
    """Return a record's extra as an object; a value of another type becomes the object's member ``extra``."""
    extra = {} if record.extra is None else record.extra
    return extra if isinstance(extra, dict) else {"extra": extra}


def present_attachments(record: Record) -> Mapping[str, bytes | memoryview]:
    """Return, by name, the bytes of a record's attachments, except empty (missing) ones."""
    return {name: blob for name, blob in record.attachments.items() if len(blob)}


def to_json(value: Any) -> bytes:
    """Encode a value as compact JSON; lone UTF-16 surrogates are escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
