"""Inputs: what a source lists and convert reads, one for each image."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from picstore.errors import ImageError, UsageError

MAX_INPUT = 1 << 30  # bytes of one source image


@dataclass(frozen=True, slots=True)
class Input:
    """One source image.

    Attributes:
        name: as the ledger and the record's extra call it; bytes of a file name that are not UTF-8 appear as ``\\xff``.
        label: its class, −1 for unknown.
        path: the file that holds it.
        offset, size: where in that file; size −1 is all of it.
        problem: why it cannot be read, known since listing; empty otherwise.
        extra: a JSON object of what the record's extra holds beside ``path``, as text, so that a million inputs with
            targets stay small; empty for none.
        annotated: width and height of the image that targets in the extra are of; see ``placement.move_targets``.
        attachments: further inputs whose bytes the record carries along, by the names that the listing declares.
    """

    name: str
    label: int
    path: str
    offset: int = 0
    size: int = -1
    problem: str = ""
    extra: bytes = b""
    annotated: tuple[int, int] | None = None
    attachments: tuple[tuple[str, Input], ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    """A source: its inputs in order.

    Attributes:
        kind: what ``--source`` calls it.
        classes: names by label.
        attachments: names of those that its inputs may have.
        remarks: what the user should hear of it: files passed over, objects left out.
    """

    kind: str
    inputs: list[Input]
    classes: list[str]
    attachments: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)

    def digest(self) -> str:
        """SHA-256 of all that inputs are told by: tells a resumed conversion that its source is still the same."""
        digest = hashlib.sha256()
        for source in self.inputs:
            digest.update(f"{source.label} {source.name}\n".encode())
            digest.update(source.extra)
            for name, attached in source.attachments:
                digest.update(f"{name} {attached.name}\n".encode())
        return digest.hexdigest()


def read_input(source: Input) -> bytes:
    """The bytes of an input; ImageError with the operating system's reason when they cannot be had."""
    if source.problem:
        raise ImageError(source.problem)
    try:
        file = os.open(source.path, os.O_RDONLY)  # a file object takes 30 µs more
        try:
            # Asking for more than there is would allocate that much: 80 of 105 µs an image.
            size = os.fstat(file).st_size if source.size < 0 else source.size
            data = os.pread(file, min(size, MAX_INPUT + 1), source.offset)
        finally:
            os.close(file)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name with a zero byte in it
        raise ImageError(f"cannot be read: {error}") from error
    if len(data) > MAX_INPUT:
        raise ImageError(f"larger than {MAX_INPUT >> 20} MiB")
    if len(data) < source.size:
        raise ImageError(f"truncated: {len(data)} of {source.size} bytes are there")
    return data


def printable(name: str) -> str:
    """A file name as UTF-8 text; its other bytes are written ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def entries_of(path: Path | str) -> list[os.DirEntry[str]]:
    """What a folder holds, by name, without hidden names."""
    try:
        with os.scandir(path) as entries:
            return sorted((e for e in entries if not e.name.startswith(".")), key=lambda entry: entry.name)
    except NotADirectoryError as error:
        raise UsageError(f"{path} is not a folder") from error
