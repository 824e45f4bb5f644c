"""Names of a data set's parts, and how bytes come and go: bounded reads, and writes that are whole or absent."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from picstore.errors import Damage, NotADataset, PicstoreError, Truncated

MANIFEST = "picstore.json"
INDEX = "picstore.idx"
LEDGER = "ledger.jsonl"
UNFINISHED = "unfinished"  # a folder that exists while a data set is being made
PARTIAL = ".partial"  # suffix of a file that is being written

Allocate: TypeAlias = "Callable[[int], memoryview]"  # writable memory of so many bytes


def fresh(size: int) -> memoryview:
    """Memory that Python frees after use."""
    return memoryview(bytearray(size))


def file_name(stream: int, file: int) -> str:
    """Path of a file relative to its data set."""
    return f"{stream:04d}/{file:06d}.pic"


def read_at(path: Path, offset: int, size: int, *, place: str, allocate: Allocate = fresh) -> memoryview:
    """``size`` bytes of a file at ``offset``; nothing is allocated for bytes that the file does not have.

    Args:
        place: what messages call the file.
        allocate: gives the memory to read into.

    Raises:
        NotADataset: the file is missing.
        Truncated: it ends before ``offset + size``.
        Damage: the disk cannot read it.
        PicstoreError: the system does not let us.
    """
    try:
        with path.open("rb", buffering=0) as file:
            there = max(0, os.fstat(file.fileno()).st_size - offset)
            if there < size:
                raise Truncated(f"the file ends after {there} of {size} bytes", place=place, offset=offset)
            view = allocate(size)
            file.seek(offset)
            got = 0
            while got < size and (count := file.readinto(view[got:])):
                got += count
    except OSError as error:
        raise _translated(error, place=place, offset=offset) from error
    if got < size:  # cut off while it was read
        raise Truncated(f"the file ends after {got} of {size} bytes", place=place, offset=offset)
    return view.toreadonly()


def _translated(error: OSError, *, place: str, offset: int) -> PicstoreError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return NotADataset(f"{place} is missing")
    if error.errno == errno.EIO:
        return Damage(f"the disk cannot read it ({error.strerror})", place=place, offset=offset)
    return PicstoreError(f"{place} cannot be read: {error.strerror}")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it is there with all of ``data`` or not there at all."""
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
