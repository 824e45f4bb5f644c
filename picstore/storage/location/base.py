"""What every location can do, wherever it lies: bounded reads, and writes that are whole or absent."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from picstore.storage.format.checksum import Buffer

PARTIAL = ".partial"  # suffix of a file that is being written

Allocate: TypeAlias = "Callable[[int], memoryview]"  # writable memory of so many bytes

_COPY_CHUNK = 8 << 20  # bytes of a file that is copied


def fresh(size: int) -> memoryview:
    """Memory that Python frees after use."""
    return memoryview(bytearray(size))


class Entry(NamedTuple):
    """What lies in a folder: a name, and whether it is a folder too."""

    name: str
    is_folder: bool


class AtomicWriter(Protocol):
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
        """The same location for a process that works elsewhere."""

    @abstractmethod
    def read(self, offset: int, size: int, *, file: str, allocate: Allocate = fresh) -> memoryview:
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
        """Every file below, in any order: its name relative to this location, with slashes, and its bytes."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write the file so that after a crash it is there with all of ``data``, or as it was before."""

    @abstractmethod
    def create(self) -> AtomicWriter:
        """Begin to write the file, which appears when the writer is closed."""

    def copy_to(self, target: Location) -> None:
        """Make another file of the same bytes, which appears when it is whole."""
        size = self.size()
        out = target.create()
        try:
            for offset in range(0, size, _COPY_CHUNK):
                out.write(bytes(self.read(offset, min(_COPY_CHUNK, size - offset), file=str(self))))
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

    def __init__(self, location: Location) -> None:
        self._location, self._size, self._at = location, location.size(), 0

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
        found = self._location.read(self._at, size, file=str(self._location))
        self._at += size
        return found
