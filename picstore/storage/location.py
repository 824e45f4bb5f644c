"""Where a data set lies, and how bytes come and go: bounded reads, and writes that are whole or absent.

A :class:`Location` is a folder or file of this machine (:class:`Folder`) or of an object store
(:class:`picstore.storage.objects.Bucket`). All code that touches a data set's parts goes through it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, TypeVar

from picstore.errors import Damage, NotADataset, PicstoreError, TooLarge, Truncated, UsageError

MANIFEST = "picstore.json"
INDEX = "picstore.idx"
LEDGER = "ledger.jsonl"
EDITS = "edits"  # a folder of what was changed afterwards
UNFINISHED = "unfinished"  # a folder that exists while a data set is being made
PARTIAL = ".partial"  # suffix of a file that is being written

Allocate: TypeAlias = "Callable[[int], memoryview]"  # writable memory of so many bytes
Where: TypeAlias = "str | os.PathLike[str] | Location"
T = TypeVar("T")
R = TypeVar("R")

_SCHEMES = ("s3", "gs", "az")
_URL = re.compile(r"([a-z][a-z0-9+]*):/{1,2}(.*)", re.DOTALL)  # pathlib makes one slash of two
_PIECE = 8 << 20  # bytes of a file that is copied
_AT_A_TIME = 16  # requests: enough to hide 20 ms each, few enough for any store


def fresh(size: int) -> memoryview:
    """Memory that Python frees after use."""
    return memoryview(bytearray(size))


def file_name(stream: int, file: int) -> str:
    """Path of a file relative to its data set."""
    return f"{stream:04d}/{file:06d}.pic"


class Sink(Protocol):
    """A file that is being written and appears only when it is complete."""

    def write(self, data: bytes | bytearray) -> None:
        """Append."""

    def close(self) -> None:
        """Make the file appear, durable."""

    def abandon(self) -> None:
        """Leave nothing behind. Does nothing after ``close``."""


class Location(ABC):
    """A folder or file; ``location / "name"`` is one below it, ``str`` what messages call it.

    Locations are values: comparable, picklable, and with nothing open.

    Raises:
        NotADataset: reading or ``size`` of what is missing.
        PicstoreError: the system or the store does not let us, or cannot be reached. It is no Damage: nothing is known
            of the bytes.
    """

    __slots__ = ()

    @abstractmethod
    def __truediv__(self, name: str) -> Location:
        """The file or folder ``name``, which may have several parts, below this one."""

    @abstractmethod
    def absolute(self) -> Location:
        """The same place for a process that works elsewhere."""

    @abstractmethod
    def read(self, offset: int, size: int, *, place: str, allocate: Allocate = fresh) -> memoryview:
        """``size`` bytes of the file at ``offset``; see :func:`read_at`."""

    @abstractmethod
    def read_all(self, limit: int) -> bytes:
        """The whole file; TooLarge, before anything is allocated, where it has more than ``limit`` bytes."""

    @abstractmethod
    def lines(self) -> Iterator[bytes]:
        """The lines of the file, each with its end, without holding all of it."""

    @abstractmethod
    def size(self) -> int:
        """Bytes of the file."""

    @abstractmethod
    def is_file(self) -> bool:
        """Whether there is a file here."""

    @abstractmethod
    def is_folder(self) -> bool:
        """Whether there is a folder here; in an object store, any object below."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, int]]:
        """Every file below, in any order: its name relative to this place, with slashes, and its bytes."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write the file so that after a crash it is there with all of ``data``, or as it was before."""

    @abstractmethod
    def create(self) -> Sink:
        """Begin to write the file, which appears when the sink is closed."""

    def copy_to(self, target: Location) -> None:
        """Make another file of the same bytes, which appears when it is whole."""
        size = self.size()
        out = target.create()
        try:
            for offset in range(0, size, _PIECE):
                out.write(bytes(self.read(offset, min(_PIECE, size - offset), place=str(self))))
            out.close()
        finally:
            out.abandon()

    @abstractmethod
    def remove(self) -> None:
        """Remove the file, or the folder with all that is in it, if it is there."""

    @abstractmethod
    def sweep(self) -> None:
        """Remove half-written files that a killed process left below."""

    @abstractmethod
    def lock(self, otherwise: str) -> contextlib.AbstractContextManager[None]:
        """Hold this file, until the process ends at the latest; UsageError(otherwise) if another process holds it."""


@dataclass(frozen=True, slots=True)
class Folder(Location):
    """A folder or file of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.path / name)

    def absolute(self) -> Folder:
        return Folder(self.path.absolute())

    def read(self, offset: int, size: int, *, place: str, allocate: Allocate = fresh) -> memoryview:
        try:
            with self.path.open("rb", buffering=0) as file:
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

    def read_all(self, limit: int) -> bytes:
        if (size := self.size()) > limit:
            raise TooLarge(f"the file has {size} bytes, at most {limit} are possible", place=str(self))
        return bytes(self.read(0, size, place=str(self)))

    def lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                yield from file
        except OSError as error:
            raise _translated(error, place=str(self), offset=0) from error

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise _translated(error, place=str(self), offset=0) from error

    def is_file(self) -> bool:
        return self.path.is_file()

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def files(self) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.path):
            for path in (Path(folder, name) for name in names):
                if (size := _size_if_there(path)) is not None:  # others may be writing here
                    yield path.relative_to(self.path).as_posix(), size

    def write(self, data: bytes) -> None:
        sink = self.create()
        try:
            sink.write(data)
            sink.close()
        finally:
            sink.abandon()

    def create(self) -> Sink:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return _FileSink(self.path)

    def copy_to(self, target: Location) -> None:
        """As ever, but a second name for the file where it can have one: no file of a data set is changed in place."""
        if isinstance(target, Folder):
            with contextlib.suppress(OSError):  # another file system, or one without links
                target.path.parent.mkdir(parents=True, exist_ok=True)
                partial = _partial(target.path)
                os.link(self.path, partial)
                partial.replace(target.path)
                partial.unlink(missing_ok=True)  # where both names were of one file already, it stays
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


def _size_if_there(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None


def _partial(path: Path) -> Path:
    """A temporary name that nobody else has."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


class _FileSink:
    """Writes under a temporary name of its own, then syncs and renames.

    Two that write the same file, of which one was taken for dead, so do not write into each other.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = _partial(path)
        self._out: BinaryIO = self._partial.open("wb")

    def write(self, data: bytes | bytearray) -> None:
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


def locate(where: Where) -> Location:
    """The location that a user names: a path, or a URL such as ``s3://bucket/train``, ``gs://…`` or ``az://…``.

    Raises:
        UsageError: a URL of another kind, or one that names no bucket.
        MissingDependency: what object stores need is not installed.
    """
    if isinstance(where, Location):
        return where
    path = os.fspath(where)
    match = _URL.fullmatch(path)
    if match is None or (match[1] not in _SCHEMES and "://" not in path):
        return Folder(Path(path))
    if match[1] not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise UsageError(f"{path} is a URL of a kind that is not known; known are {known} and paths")
    from picstore.storage.objects import Bucket

    return Bucket.parse(match[1], match[2])


def read_at(where: Where, offset: int, size: int, *, place: str, allocate: Allocate = fresh) -> memoryview:
    """``size`` bytes of a file at ``offset``; nothing is allocated for bytes that the file does not have.

    Args:
        place: what messages call the file.
        allocate: gives the memory to read into.

    Raises:
        NotADataset: the file is missing.
        Truncated: it ends before ``offset + size``.
        Damage: the disk cannot read it.
        PicstoreError: the system or the store does not let us, or cannot be reached.
    """
    return locate(where).read(offset, size, place=place, allocate=allocate)


def many(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """``map`` with a few calls at a time, since each waits for a disk or a network; holds a few dozen results."""
    waiting = iter(items)
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        while chunk := list(islice(waiting, 4 * _AT_A_TIME)):
            yield from threads.map(function, chunk)


def write_whole(where: Where, data: bytes) -> None:
    """Write a file so that after a crash it is there with all of ``data``, or as it was before."""
    locate(where).write(data)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _translated(error: OSError, *, place: str, offset: int) -> PicstoreError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return NotADataset(f"{place} is missing")
    if error.errno == errno.EIO:
        return Damage(f"the disk cannot read it ({error.strerror})", place=place, offset=offset)
    return PicstoreError(f"{place} cannot be read: {error.strerror}")
