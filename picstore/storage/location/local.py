"""Local folders and files as locations."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from picstore.errors import Conflict, Damage, NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location.base import PARTIAL, Allocate, Buffer, Entry, Location, Piece, Range, fresh, pieces_of

_LOCK_POLL = 0.01  # seconds between attempts to lock


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
            descriptor, there = open_regular(self.path)
            with os.fdopen(descriptor, "rb", buffering=0) as opened:
                there = max(0, there - offset)
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

    def read_cached(self, ranges: Sequence[Range], buffer: memoryview, *, at: int) -> bool:
        if not hasattr(os, "RWF_NOWAIT"):  # macOS
            return False
        try:
            descriptor, _ = open_regular(self.path)
            try:
                for offset, memory in pieces_of(ranges, buffer, at=at):
                    if not _read_without_waiting(descriptor, memory, offset):
                        for first, last in ranges:
                            os.posix_fadvise(descriptor, at + first, last - first, os.POSIX_FADV_WILLNEED)
                        return False
            finally:
                os.close(descriptor)
        except OSError:  # the read that follows tells
            return False
        return True

    def read_all(self, limit: int) -> bytes:
        if (size := self.size()) > limit:
            raise TooLarge(f"the file has {size} bytes, at most {limit} are possible", file=str(self))
        return bytes(self.read(0, size, file=str(self)))

    def lines(self) -> Iterator[bytes]:
        try:
            with os.fdopen(open_regular(self.path)[0], "rb") as file:
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
                return sorted(Entry(entry.name, is_folder(entry)) for entry in found)
        except NotADirectoryError as error:
            raise UsageError(f"{self} is not a folder; give one") from error
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
        except (NotADataset, TooLarge, Truncated):  # missing, or changed at this moment
            return False
        self.write(data)
        return True

    def create(self) -> _AtomicFile:
        make_folder(self.path.parent)
        return _AtomicFile(self.path)

    def copy_to(self, target: Location) -> None:
        """Link the file where the file system can, since no file of a data set is ever modified; else copy it."""
        if isinstance(target, Folder):
            with contextlib.suppress(OSError):  # another file system, or one without hard links
                make_folder(target.path.parent)
                partial = _partial(target.path)
                os.link(self.path, partial)
                partial.replace(target.path)
                partial.unlink(missing_ok=True)  # replace() leaves it where both names are links to one file
                sync_folder(target.path.parent)
                return
        Location.copy_to(self, target)

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
            # An error: locked by its writer, renamed, or not a file that picstore wrote.
            with contextlib.suppress(OSError), os.fdopen(open_regular(path)[0], "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    @contextlib.contextmanager
    def lock(self, busy: str, *, wait: float = 0, create: bool = False) -> Iterator[None]:
        if create:
            make_folder(self.path.parent)
        try:
            # For writing, as NFS makes flock a lock of bytes, which needs that.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o666)
        except FileNotFoundError as error:
            raise Conflict(f"{self} was removed by another process; run the command again") from error
        except OSError as error:
            raise UsageError(f"{self} cannot be locked, {error.strerror}; make it writable") from error
        try:
            self._flock(descriptor, busy, time.monotonic() + wait)
            # Whoever removes the file holds the lock; a lock on a removed file excludes nobody.
            if not self.path.exists() or not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise Conflict(f"{self} was removed by another process; run the command again")
            yield
        finally:
            os.close(descriptor)

    def _flock(self, descriptor: int, busy: str, deadline: float) -> None:
        """Lock an open file; UsageError(busy) if it is locked by others until ``deadline``, of time.monotonic()."""
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise UsageError(busy) from error
            except OSError as error:
                raise UsageError(
                    f"the file system of {self} has no locks ({error.strerror}), which protect a data set from two "
                    "commands at once; write to another file system or an object store, and copy the data set"
                ) from error
            else:
                return
            time.sleep(_LOCK_POLL)


def _partial(path: Path) -> Path:
    """Make a unique temporary name."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


class _AtomicFile:
    """Writer under a unique temporary name, which ``close`` syncs and renames.

    Two processes that write the same file, one of them taken for dead, thus do not write into each other's file. The
    temporary file is locked until it has its name, so ``sweep`` removes only dead processes' files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = False
        while True:
            self._partial = _partial(path)
            self._out: BinaryIO = self._partial.open("wb")
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._out, fcntl.LOCK_SH)
            if self._partial.exists():
                return
            self._out.close()  # swept before it was locked

    def write(self, data: Buffer) -> None:
        self._out.write(data)

    def close(self) -> None:
        self._sync()
        self._partial.replace(self._path)
        self._ended = True
        self._out.close()
        sync_folder(self._path.parent)

    def close_new(self) -> bool:
        """Make the file appear unless one of its name exists; return whether it did."""
        self._sync()
        try:
            os.link(self._partial, self._path)  # fails where the name is taken, unlike a renaming
        except FileExistsError:
            return False
        except OSError:  # no hard links here
            return self._close_alone()
        else:
            sync_folder(self._path.parent)
            self.abandon()
        return True

    def _close_alone(self) -> bool:
        """Make the file appear unless one of its name exists, while no other process does so in this folder."""
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if self._path.exists():
                return False
            self.close()
            return True
        finally:
            os.close(folder)

    def _sync(self) -> None:
        self._out.flush()
        sync(self._out.fileno())

    def abandon(self) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            with contextlib.suppress(OSError):  # a full disk does not take what is buffered
                self._out.close()
        finally:
            self._partial.unlink(missing_ok=True)


class NotRegular(OSError):
    """A path is a named pipe, a socket or a device."""


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one; False for links that go round in a circle."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def kind_of(mode: int) -> str:
    """Name the kind of what is no regular file and no folder, by its ``st_mode``."""
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading; returns its descriptor and size. OSError for anything else, without waiting.

    Opening a named pipe would wait for its writer for ever, and devices have no end.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:  # half a surrogate pair or a zero byte, which no file name has
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # of a socket, or of a device that is not there
            raise NotRegular(errno.EINVAL, "a socket or a device, not a regular file", path) from error
        raise
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode):
        return file, status.st_size
    os.close(file)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise NotRegular(errno.EINVAL, f"{kind_of(status.st_mode)}, not a regular file", path)


def make_folder(path: Path) -> None:
    """Make a folder and its parents where they are missing, durable."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Make what was written to a file, or renamed in a folder, durable.

    On macOS fsync leaves it in the memory of the disk. F_FULLFSYNC writes that too; some file systems lack it.
    """
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _read_without_waiting(descriptor: int, memory: memoryview, offset: int) -> bool:
    """Read bytes of a file that are in memory; False if one is not, or where a file system cannot tell."""
    try:
        return os.preadv(descriptor, [memory], offset, os.RWF_NOWAIT) == len(memory)
    except OSError:
        return False


def _translated(error: OSError, *, file: str, offset: int) -> PicstoreError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return NotADataset(f"{file} is missing")
    if isinstance(error, NotRegular):
        return Damage(f"it is {error.strerror}", file=file, offset=offset)
    if error.errno == errno.EIO:
        return Damage(f"the disk cannot read it ({error.strerror})", file=file, offset=offset)
    return PicstoreError(f"{file} cannot be read: {error.strerror}")
