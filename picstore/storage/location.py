"""Where a data set lies, and how bytes come and go: bounded reads, and writes that are whole or absent.

A :class:`Location` is a folder or file of this machine (:class:`picstore.storage.folder.Folder`) or of an object store
(:class:`picstore.storage.objects.Bucket`). All code that touches a data set's parts goes through it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias, TypeVar

from picstore.errors import UsageError
from picstore.storage.checksum import Buffer

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
_QUICK = 0.001  # seconds of a call that waits for nothing
_AT_A_TIME = 16  # requests: enough to hide 20 ms each, few enough for any store


def fresh(size: int) -> memoryview:
    """Memory that Python frees after use."""
    return memoryview(bytearray(size))


def file_name(stream: int, file: int) -> str:
    """Path of a file relative to its data set."""
    return f"{stream:04d}/{file:06d}.pic"


class Entry(NamedTuple):
    """What lies in a folder: a name, and whether it is a folder too."""

    name: str
    is_folder: bool


class Sink(Protocol):
    """A file that is being written and appears only when it is complete."""

    def write(self, data: Buffer) -> None:
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

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part."""

    @property
    @abstractmethod
    def parent(self) -> Location:
        """The folder that this lies in."""

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

    def exists(self) -> bool:
        """Whether there is anything here."""
        return self.is_file() or self.is_folder()

    def open(self) -> BinaryIO:
        """The file for a library that reads and seeks."""
        return io.BufferedReader(_Reader(self))

    @abstractmethod
    def entries(self) -> list[Entry]:
        """What lies directly in the folder, by name.

        Raises:
            UsageError: this is a file.
            NotADataset: there is nothing.
        """

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


class _Reader(io.RawIOBase):
    """A file as the standard library has them, each read one request."""

    def __init__(self, place: Location) -> None:
        self._place, self._size, self._at = place, place.size(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, into: Any) -> int:
        view = memoryview(into)
        found = self._next(len(view))
        view[: len(found)] = found
        return len(found)

    def readall(self) -> bytes:
        return bytes(self._next(self._size))

    def _next(self, most: int) -> memoryview:
        size = max(0, min(most, self._size - self._at))
        found = self._place.read(self._at, size, place=str(self._place))
        self._at += size
        return found


def locate(where: Where) -> Location:
    """The location that a user names: a path, or a URL such as ``s3://bucket/train``, ``gs://…`` or ``az://…``.

    Raises:
        UsageError: a URL of another kind, or one that names no bucket.
        MissingDependency: what object stores need is not installed.
    """
    if isinstance(where, Location):
        return where
    from picstore.storage.folder import Folder  # which, as Bucket below, needs what is here

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
    """``map`` with a few calls at a time where each waits for a disk or a network; holds a few dozen results.

    As long as they do not wait, one after the other takes less: 0.1 ms where threads take 0.3, for a file's footer.
    """
    waiting = iter(items)
    taken = 0.0
    for count, item in enumerate(waiting, start=1):
        began = time.monotonic()
        result = function(item)
        taken += time.monotonic() - began
        yield result
        if taken > _QUICK * count:
            break
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        while chunk := list(islice(waiting, 4 * _AT_A_TIME)):
            yield from threads.map(function, chunk)


def write_whole(where: Where, data: bytes) -> None:
    """Write a file so that after a crash it is there with all of ``data``, or as it was before."""
    locate(where).write(data)
