"""Local folders and files as locations."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from picstore.errors import Conflict, Damage, NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location.abstract_location import (
    MAX_LINE,
    PARTIAL,
    Allocate,
    Entry,
    Piece,
    WritableLocation,
    fresh,
)
from picstore.storage.location.atomic_file import AtomicFile, make_folder, partial_path, sync_folder
from picstore.storage.location.regular_file import NotRegular, is_folder, open_regular

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)  # errors that mean that no file is there
_LOCK_POLL = 0.01  # seconds between attempts to lock a file


@dataclass(frozen=True, slots=True)
class Folder(WritableLocation):
    """Local folder or file."""

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
            descriptor, there = open_regular(self.path)
            try:
                there = max(0, there - offset)
                if there < size:
                    raise Truncated(f"the file ends after {there} of {size} bytes", file=file, offset=offset)
                view, got = allocate(size), 0
                while got < size and (count := os.preadv(descriptor, [view[got:]], offset + got)):
                    got += count
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _translated(error, file=file, offset=offset) from error
        if got < size:  # The file was cut off during the read.
            raise Truncated(f"the file ends after {got} of {size} bytes", file=file, offset=offset)
        return view.toreadonly()

    def read_pieces(self, pieces: Sequence[Piece], *, file: str, near: int = 0) -> None:
        offset = 0
        try:
            descriptor, _ = open_regular(self.path)
            try:
                for offset, memory in pieces:
                    end = 0
                    while end < len(memory) and (got := os.preadv(descriptor, [memory[end:]], offset + end)):
                        end += got
                    if end < len(memory):
                        raise Truncated(f"the file ends after {end} of {len(memory)} bytes", file, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _translated(error, file=file, offset=offset) from error

    def read_cached(self, pieces: Sequence[Piece]) -> bool:
        if not hasattr(os, "RWF_NOWAIT"):  # macOS lacks this flag of reads that fail rather than wait for the disk.
            return False
        try:
            descriptor, _ = open_regular(self.path)
            try:
                for offset, memory in pieces:
                    if not _read_without_waiting(descriptor, memory, offset):
                        for begin, missing in pieces:
                            os.posix_fadvise(descriptor, begin, len(missing), os.POSIX_FADV_WILLNEED)
                        return False
            finally:
                os.close(descriptor)
        except OSError:  # The caller then calls read_pieces, which raises the error.
            return False
        return True

    def read_all(self, limit: int) -> bytes:
        if (size := self.size()) > limit:
            raise TooLarge(f"the file has {size} bytes, at most {limit} are possible", file=str(self))
        return bytes(self.read(0, size, file=str(self)))

    def lines(self) -> Iterator[bytes]:
        try:
            with os.fdopen(open_regular(self.path)[0], "rb") as file:
                yield from iter(lambda: file.readline(MAX_LINE), b"")
        except OSError as error:
            raise _translated(error, file=str(self), offset=0) from error

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise _translated(error, file=str(self), offset=0) from error

    def is_file(self) -> bool:
        return stat.S_ISREG(self._mode())

    def is_folder(self) -> bool:
        return stat.S_ISDIR(self._mode())

    def exists(self) -> bool:
        return self._mode() != 0  # True for pipes and devices too.

    def _mode(self) -> int:
        """Return the path's ``st_mode``, or 0 if nothing exists there."""
        try:
            return self.path.stat().st_mode
        except ValueError:  # The path has a zero byte or half a surrogate pair.
            return 0
        except OSError as error:
            if error.errno in _ABSENT:
                return 0
            raise _translated(error, file=str(self), offset=0) from error

    def entries(self) -> list[Entry]:
        try:
            with os.scandir(self.path) as found:
                return sorted(Entry(entry.name, is_folder(entry)) for entry in found)
        except NotADirectoryError:
            raise UsageError(f"{self} is not a folder; give one") from None
        except FileNotFoundError:
            raise NotADataset(f"{self} does not exist") from None
        except OSError as error:
            raise _translated(error, file=str(self), offset=0) from error

    def files(self) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.path):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(FileNotFoundError):  # Another process may have renamed the listed file.
                    yield path.relative_to(self.path).as_posix(), path.lstat().st_size

    def write(self, data: bytes) -> None:
        writer = self.create()
        try:
            writer.write(data)
            writer.close()
        finally:
            writer.abandon()

    def write_new(self, data: bytes) -> bool:
        writer = self.create()
        try:
            writer.write(data)
            return writer.close_new()
        finally:
            writer.abandon()

    def replace(self, data: bytes, *, expected: bytes) -> bool:
        try:
            if self.size() != len(expected) or self.read_all(len(expected)) != expected:
                return False
        except (NotADataset, TooLarge, Truncated):  # The file is missing, or another process is changing it.
            return False
        self.write(data)
        return True

    def create(self) -> AtomicFile:
        make_folder(self.path.parent)
        return AtomicFile(self.path)

    def copy_to(self, target: WritableLocation) -> None:
        """Make the target a hard link to the file, because datasets' files are never modified; else copy the file."""
        if not self.link_to(target):
            WritableLocation.copy_to(self, target)

    def link_to(self, target: WritableLocation) -> bool:
        if isinstance(target, Folder):
            with contextlib.suppress(OSError):  # The target is on another file system, or hard links are not possible.
                make_folder(target.path.parent)
                partial = partial_path(target.path)
                os.link(self.path, partial)
                partial.replace(target.path)
                # If the target was already a link to this file, ``replace`` did nothing; remove the temporary link.
                partial.unlink(missing_ok=True)
                sync_folder(target.path.parent)
                return True
        return False

    def remove(self, *, keep: Collection[str] = ()) -> None:
        if self.path.is_dir():
            if not keep:
                shutil.rmtree(self.path, ignore_errors=True)
            for entry in self.entries() if keep else ():
                if entry.name not in keep:
                    (self / entry.name).remove()
        else:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
                sync_folder(self.path.parent)

    def sweep(self) -> None:
        for path in (*self.path.glob(f"*{PARTIAL}"), *self.path.glob(f"*/*{PARTIAL}")):
            # Keep a file that a living process has locked or renamed, or that is not a regular file of this user.
            with contextlib.suppress(OSError), os.fdopen(open_regular(path)[0], "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    @contextlib.contextmanager
    def lock(self, busy: str, *, wait: float = 0, create: bool = False) -> Iterator[None]:
        if create:
            make_folder(self.path.parent)
        try:
            # Open for writing, because NFS implements flock by a byte-range lock, which needs a writable file.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o666)
        except FileNotFoundError as error:
            raise Conflict(f"{self} was removed by another process; run the command again") from error
        except OSError as error:
            raise UsageError(f"{self} cannot be locked, {error.strerror}; make it writable") from error
        try:
            self._flock(descriptor, busy, time.monotonic() + wait)
            # If the lock's previous holder has removed the file, this lock protects nothing: others lock a new file.
            if not self.path.exists() or not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise Conflict(f"{self} was removed by another process; run the command again")
            yield
        finally:
            os.close(descriptor)

    def _flock(self, descriptor: int, busy: str, deadline: float) -> None:
        """Lock an open file; raise UsageError(busy) if another process has the lock until ``deadline`` (monotonic)."""
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise UsageError(busy) from error
            except OSError as error:
                raise UsageError(
                    f"the file system of {self} has no locks ({error.strerror}), which protect a dataset from two "
                    "commands at once; write to another file system or an object store, and copy the dataset"
                ) from error
            else:
                return
            time.sleep(_LOCK_POLL)


def _read_without_waiting(descriptor: int, memory: memoryview, offset: int) -> bool:
    """Fill ``memory`` from a file if the page cache holds all bytes; return False if not, or if that is unsupported."""
    try:
        return os.preadv(descriptor, [memory], offset, os.RWF_NOWAIT) == len(memory)
    except OSError:
        return False


def _translated(error: OSError, *, file: str, offset: int) -> PicstoreError:
    if isinstance(error, IsADirectoryError) or error.errno in _ABSENT:
        return NotADataset(f"{file} is missing")
    if isinstance(error, NotRegular):
        return Damage(f"it is {error.strerror}", file=file, offset=offset)
    if error.errno == errno.EIO:
        return Damage(f"the disk cannot read it ({error.strerror})", file=file, offset=offset)
    return PicstoreError(f"{file} cannot be read: {error.strerror}")
