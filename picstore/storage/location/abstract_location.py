"""Interfaces of locations: bounded reads, and writes that are whole or absent, in folders and object stores."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self

    from picstore.arrays import I64

PARTIAL = ".partial"  # suffix of a file that is being written
MAX_LINE = 1 << 24  # bytes; longer lines of text come in parts

Range: TypeAlias = "tuple[int, int]"  # the first byte, and the last + 1
Buffer: TypeAlias = bytes | bytearray | memoryview
# An offset in a file, and writable memory for the bytes from there on.
Piece: TypeAlias = "tuple[int, memoryview]"
Allocate: TypeAlias = "Callable[[int], memoryview]"  # number of bytes → writable memory

_COPY_CHUNK = 8 << 20  # bytes


def fresh(size: int) -> memoryview:
    """Allocate ``size`` bytes of memory of Python."""
    return memoryview(bytearray(size))


def first_of_runs(begins: I64, ends: I64, near: int) -> I64:
    """Find which of some stretches of a file begin a run, whose stretches are read at once.

    ``begins`` ascend. A stretch that begins at most ``near`` bytes after all stretches before it belongs to their run.
    """
    import numpy as np  # locations load without it

    return np.flatnonzero(np.append(True, begins[1:] - np.maximum.accumulate(ends)[:-1] > near)[: len(begins)])


class Entry(NamedTuple):
    """An entry of a folder: the name, and whether the entry is a folder too."""

    name: str
    is_folder: bool


class AtomicWriter(Protocol):
    """Writer of a file: ``close`` makes the file appear, durable; ``abandon`` before ``close`` discards it."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Root(ABC):
    """Place of files: ``root / "name"`` is a file or folder there, ``str(root)`` the place's name in messages.

    Roots are values: comparable, picklable, and without open files.
    """

    __slots__ = ()

    @abstractmethod
    def __truediv__(self, name: str) -> Location:
        """Return the file or folder ``name`` below this root; the name may hold slashes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last component of the path."""

    @abstractmethod
    def absolute(self) -> Self:
        """Return the same root for a process with another working directory."""


class Location(Root):
    """A folder or file that is read.

    Raises:
        NotADataset: reading, or ``size``, of a missing file.
        PicstoreError: access is refused, or the store cannot be reached. This is not Damage, since nothing is known
            of the bytes.
    """

    __slots__ = ()

    @abstractmethod
    def __truediv__(self, name: str) -> Self: ...

    @property
    @abstractmethod
    def parent(self) -> Self:
        """The folder that holds this file or folder."""

    @abstractmethod
    def read(self, offset: int, size: int, *, file: str, allocate: Allocate = fresh) -> memoryview:
        """Read ``size`` bytes of the file at ``offset``; see :func:`picstore.storage.location.resolve.read_at`."""

    @abstractmethod
    def read_pieces(self, pieces: Sequence[Piece], *, file: str, near: int = 0) -> None:
        """Read parts of the file, each to memory of its own; an object store sends them side by side.

        A store reads parts that are at most ``near`` bytes apart by one request. Messages call the file ``file``.
        Truncated if the file ends before the last part.
        """

    def read_cached(self, pieces: Sequence[Piece]) -> bool:
        """Read parts of the file, as :meth:`read_pieces` does, if the system holds all of them in memory.

        Otherwise the disk begins to fetch them, so that reading several files afterwards waits for all at once.

        Returns:
            Whether they were read; if not, the pieces may have any content. Always False in a store.
        """
        return False

    @abstractmethod
    def read_all(self, limit: int) -> bytes:
        """Read the whole file; TooLarge, before anything is allocated, if it has more than ``limit`` bytes."""

    @abstractmethod
    def lines(self) -> Iterator[bytes]:
        """Iterate over the lines of the file, line ends included, without holding the whole file.

        A line of more than MAX_LINE bytes comes in parts.
        """

    @abstractmethod
    def size(self) -> int:
        """Size of the file in bytes."""

    @abstractmethod
    def is_file(self) -> bool:
        """Return whether this is a file."""

    @abstractmethod
    def is_folder(self) -> bool:
        """Return whether this is a folder; in an object store, whether any object lies below."""

    def exists(self) -> bool:
        """Return whether this is a file or folder."""
        return self.is_file() or self.is_folder()

    def open(self) -> BinaryIO:
        """Open the file for a library that reads and seeks."""
        return io.BufferedReader(_Reader(self))

    @abstractmethod
    def entries(self) -> list[Entry]:
        """List the direct entries of the folder, by name; UsageError for a file, NotADataset if nothing is there."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, int]]:
        """Iterate over all files below, in any order: relative name, with slashes, and size in bytes."""

    def is_odd(self, name: str) -> bool:
        """Return whether the store's client refuses the name of a file that was listed below."""
        return False

    def link_to(self, target: WritableLocation) -> bool:
        """Make the target a second name of the file; return False, and do nothing, if that is not possible."""
        return False

    def copy_to(self, target: WritableLocation) -> None:
        """Copy the file; the target appears when it is whole."""
        size = self.size()
        out = target.create()
        try:
            for offset in range(0, size, _COPY_CHUNK):
                out.write(bytes(self.read(offset, min(_COPY_CHUNK, size - offset), file=str(self))))
            out.close()
        finally:
            out.abandon()


class WritableLocation(Location):
    """A folder or file that is read and written; files appear whole."""

    __slots__ = ()

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write the file; after a crash it holds all of ``data``, or is as it was before."""

    @abstractmethod
    def write_new(self, data: bytes) -> bool:
        """Write the file, whole, unless one exists; of several callers at once one gets True, the others False."""

    @abstractmethod
    def replace(self, data: bytes, *, expected: bytes) -> bool:
        """Write the file if it holds ``expected``; False, and nothing written, if it holds other bytes or is missing.

        In an object store this is one conditional request. In a folder the caller holds a lock.
        """

    @abstractmethod
    def create(self) -> AtomicWriter:
        """Open a writer of the file, which appears when the writer is closed."""

    @abstractmethod
    def remove(self, *, keep: Collection[str] = ()) -> None:
        """Remove the file, or the folder and its content; entries named in ``keep`` stay, and the folder with them."""

    @abstractmethod
    def sweep(self) -> None:
        """Remove incomplete files that killed processes left in this folder and in the folders of it."""

    @abstractmethod
    def lock(self, busy: str, *, wait: float = 0, create: bool = False) -> contextlib.AbstractContextManager[None]:
        """Lock this file, at most until the process ends; a store locks nothing.

        With ``create``, a missing file is made. UsageError with the message ``busy`` if another process holds the lock
        for ``wait`` seconds, UsageError if the file system has no locks, Conflict if the file was removed meanwhile.
        """


class _Reader(io.RawIOBase):
    """Raw file of the standard library that reads a location; each read is one request."""

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
        found = self._read_next(len(view))
        view[: len(found)] = found
        return len(found)

    def readall(self) -> bytes:
        return bytes(self._read_next(self._size))

    def _read_next(self, most: int) -> memoryview:
        size = max(0, min(most, self._size - self._at))
        found = self._location.read(self._at, size, file=str(self._location))
        self._at += size
        return found
