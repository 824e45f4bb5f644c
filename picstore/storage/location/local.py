"""Local folders and files as locations."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from picstore.errors import Damage, NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location.base import PARTIAL, Allocate, AtomicWriter, Buffer, Entry, Location, fresh


@dataclass(frozen=True, slots=True)
class Folder(Location):
    """A local folder or file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parent(self) -> Folder:
        return Folder(self.path.parent)

    def absolute(self) -> Folder:
        return Folder(self.path.absolute())

    def read(self, offset: int, size: int, *, file: str, allocate: Allocate = fresh) -> memoryview:
        try:
            with self.path.open("rb", buffering=0) as opened:
                there = max(0, os.fstat(opened.fileno()).st_size - offset)
                if there < size:
                    raise Truncated(f"the file ends after {there} of {size} bytes", file=file, offset=offset)
                view = allocate(size)
                opened.seek(offset)
                got = 0
                while got < size and (count := opened.readinto(view[got:])):
                    got += count
        except OSError as error:
            raise _translated(error, file=file, offset=offset) from error
        if got < size:  # the file was cut off during the read
            raise Truncated(f"the file ends after {got} of {size} bytes", file=file, offset=offset)
        return view.toreadonly()

    def read_all(self, limit: int) -> bytes:
        if (size := self.size()) > limit:
            raise TooLarge(f"the file has {size} bytes, at most {limit} are possible", file=str(self))
        return bytes(self.read(0, size, file=str(self)))

    def lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from file
        except OSError as error:
            raise _translated(error, file=str(self), offset=0) from error

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise _translated(error, file=str(self), offset=0) from error

    def is_file(self) -> bool:
        return self.path.is_file()

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def exists(self) -> bool:
        return self.path.exists()  # also true for a pipe, which is neither file nor folder

    def entries(self) -> list[Entry]:
        try:
            with os.scandir(self.path) as found:
                return sorted(Entry(entry.name, entry.is_dir()) for entry in found)
        except NotADirectoryError as error:
            raise UsageError(f"{self} is not a folder") from error
        except FileNotFoundError as error:
            raise NotADataset(f"{self} does not exist") from error
        except OSError as error:
            raise _translated(error, file=str(self), offset=0) from error

    def files(self) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.path):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):  # other processes may be writing here
                    yield path.relative_to(self.path).as_posix(), path.lstat().st_size

    def write(self, data: bytes) -> None:
        writer = self.create()
        try:
            writer.write(data)
            writer.close()
        finally:
            writer.abandon()

    def create(self) -> AtomicWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return _AtomicFile(self.path)

    def copy_to(self, target: Location) -> None:
        """Link the file where the file system can, since no file of a data set is ever modified; else copy it."""
        if isinstance(target, Folder):
            with contextlib.suppress(OSError):  # another file system, or one without hard links
                target.path.parent.mkdir(parents=True, exist_ok=True)
                partial = _partial(target.path)
                os.link(self.path, partial)
                partial.replace(target.path)
                partial.unlink(missing_ok=True)  # replace() leaves it where both names are links to one file
                sync_folder(target.path.parent)
                return
        Location.copy_to(self, target)

    def remove(self) -> None:
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)

    def sweep(self) -> None:
        for path in self.path.glob(f"*/*{PARTIAL}"):
            path.unlink()

    @contextlib.contextmanager
    def lock(self, otherwise: str) -> Iterator[None]:
        with self.path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(otherwise) from error
            yield


def _partial(path: Path) -> Path:
    """Make a unique temporary name."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


class _AtomicFile:
    """Writer under a unique temporary name, which ``close`` syncs and renames.

    Two processes that write the same file, one of them taken for dead, thus do not write into each other's file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = _partial(path)
        self._out: BinaryIO = self._partial.open("wb")

    def write(self, data: Buffer) -> None:
        self._out.write(data)

    def close(self) -> None:
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        self._partial.replace(self._path)
        sync_folder(self._path.parent)

    def abandon(self) -> None:
        if not self._out.closed:
            self._out.close()
            self._partial.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _translated(error: OSError, *, file: str, offset: int) -> PicstoreError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return NotADataset(f"{file} is missing")
    if error.errno == errno.EIO:
        return Damage(f"the disk cannot read it ({error.strerror})", file=file, offset=offset)
    return PicstoreError(f"{file} cannot be read: {error.strerror}")
