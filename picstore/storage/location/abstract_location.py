"""Interfaces of locations in folders and object stores: bounded reads, and writes that are whole or absent."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Self

    from picstore.arrays import I64

PARTIAL = ".partial"  # suffix of a file that is still being written
MAX_LINE = 1 << 24  # Largest number of bytes of a line to read whole; a longer line is read in parts.

Range: TypeAlias = "tuple[int, int]"  # Byte range: offsets of the first byte and of the byte after the last byte.
Buffer: TypeAlias = bytes | bytearray | memoryview
# Offset in a file, and writable memory to be filled with the file's bytes from that offset on.
Piece: TypeAlias = "tuple[int, memoryview]"
Allocate: TypeAlias = "Callable[[int], memoryview]"  # Function that allocates writable memory, given its size in bytes.

_COPY_CHUNK = 8 << 20


def fresh(size: int) -> memoryview:
    """Allocate ``size`` bytes in a new bytearray."""
    return memoryview(bytearray(size))


def first_of_runs(begins: I64, ends: I64, near: int) -> I64:
    """Group n byte ranges of a file into runs, each to be read at once; return the index of each run's first range.

    The ranges are ``begins`` to ``ends``, both int64 (n,); ``begins`` must ascend. A range joins the present run if the
    range begins at most ``near`` bytes after the largest end in the run.
    """
    import numpy as np  # Imported here, because locations must load without NumPy.

    return np.flatnonzero(np.append(True, begins[1:] - np.maximum.accumulate(ends)[:-1] > near)[: len(begins)])


class Entry(NamedTuple):
    """Entry of a folder: name of the file or subfolder, and whether it is a subfolder."""

    name: str
    is_folder: bool


class AtomicWriter(Protocol):
    """Writer of a file: ``close`` publishes the file durably; ``abandon``, called before ``close``, discards it."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Root(ABC):
    """Folder, or several folders read as one. ``root / "name"`` is a file in it, ``str(root)`` its name for messages.

    Roots are comparable and picklable, and hold no open files.
    """

    __slots__ = ()

    @abstractmethod
    def __truediv__(self, name: str) -> Location:
        """Return the file or folder ``name`` below this root; the name may contain slashes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Last component of the path."""

    @abstractmethod
    def absolute(self) -> Self:
        """Return the same root with an absolute path, for a process with another working directory."""


class Location(Root):
    """Folder or file to read, local or in an object store.

    Raises:
        NotADataset: a file that is read, or whose ``size`` is requested, is missing.
        PicstoreError: access is refused, or the store cannot be reached. Not Damage, because the bytes may be sound.
    """

    __slots__ = ()

    @abstractmethod
    def __truediv__(self, name: str) -> Self: ...

    @property
    @abstractmethod
    def parent(self) -> Self:
        """Folder that holds this file or folder."""

    @abstractmethod
    def read(self, offset: int, size: int, *, file: str, allocate: Allocate = fresh) -> memoryview:
        """Read ``size`` bytes of the file at ``offset``; see :func:`picstore.storage.location.resolve.read_at`."""

    @abstractmethod
    def read_pieces(self, pieces: Sequence[Piece], *, file: str, near: int = 0) -> None:
        """Read parts of the file, each given as its offset and the memory to fill; from an object store, concurrently.

        One request reads parts of an object that are at most ``near`` bytes apart. ``file`` is the file's name in
        messages. Raise Truncated if the file ends before the end of a part.
        """

    def read_cached(self, pieces: Sequence[Piece]) -> bool:
        """Read parts of the file, as :meth:`read_pieces` does, if all parts are in the system's page cache.

        Otherwise ask the system to fetch the parts from the disk, and do not wait.

        Returns:
            Whether the parts were read; if not, their memory may have any content. Always False for an object store.
        """
        return False

    @abstractmethod
    def read_all(self, limit: int) -> bytes:
        """Read the whole file; raise TooLarge, before allocating memory, if it has more than ``limit`` bytes."""

    @abstractmethod
    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the file, with their line ends; a line of more than MAX_LINE bytes is yielded in parts."""

    @abstractmethod
    def size(self) -> int:
        """Return the size of the file in bytes."""

    @abstractmethod
    def is_file(self) -> bool:
        """Return whether this is a file."""

    @abstractmethod
    def is_folder(self) -> bool:
        """Return whether this is a folder; in an object store, whether any object lies below it."""

    def exists(self) -> bool:
        return self.is_file() or self.is_folder()

    def open(self) -> BinaryIO:
        """Open the file as a seekable binary file object, for libraries that read from one."""
        return io.BufferedReader(_Reader(self))

    @abstractmethod
    def entries(self) -> list[Entry]:
        """List the folder's entries, sorted by name; raise UsageError if this is a file, NotADataset if missing."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, int]]:
        """Yield (relative path with slashes, size in bytes) of all files below this folder, in any order."""

    def is_odd(self, name: str) -> bool:
        """Return whether a file below this folder is unreadable, because the store's client rejects its name."""
        return False

    def link_to(self, target: WritableLocation) -> bool:
        """Make the target a hard link to this file and return True; return False if such a link is impossible."""
        return False

    def copy_to(self, target: WritableLocation) -> None:
        """Copy this file to the target, which appears only once it is complete."""
        size = self.size()
        out = target.create()
        try:
            for offset in range(0, size, _COPY_CHUNK):
                out.write(bytes(self.read(offset, min(_COPY_CHUNK, size - offset), file=str(self))))
            out.close()
        finally:
            out.abandon()


class WritableLocation(Location):
    """Folder or file to read and write; a written file appears only once it is complete."""

    __slots__ = ()

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Write the file; after a crash, it holds either all of ``data`` or its old content."""

    @abstractmethod
    def write_new(self, data: bytes) -> bool:
        """Write the file and return True, or return False if it exists already.

        Only one of concurrent calls returns True.
        """

    @abstractmethod
    def replace(self, data: bytes, *, expected: bytes) -> bool:
        """If the file's content is ``expected``, replace the content by ``data`` and return True; else return False.

        In a folder, the caller must hold a lock; in an object store, the write is one conditional request.
        """

    @abstractmethod
    def create(self) -> AtomicWriter:
        """Return a writer of the file; the file appears when the writer is closed."""

    @abstractmethod
    def remove(self, *, keep: Collection[str] = ()) -> None:
        """Remove the file or folder; if ``keep`` has names of entries in the folder, keep the folder and these."""

    @abstractmethod
    def sweep(self) -> None:
        """Remove the incomplete files that killed processes left in this folder and in the folders directly in it."""

    @abstractmethod
    def lock(self, busy: str, *, wait: float = 0, create: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return a context that locks this file until the context or the process ends; in a store, it does nothing.

        ``create`` creates a missing file. Raise UsageError with the message ``busy`` if another process still holds the
        lock after ``wait`` seconds, UsageError if locks are unsupported, and Conflict if the file was removed.
        """


class _Reader(io.RawIOBase):
    """Raw file object in the sense of the module ``io``; each read of it is one call of the location's ``read``."""

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
