"""Local files that are written whole and durably, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import weakref
from pathlib import Path
from typing import BinaryIO

from picstore.errors import UsageError
from picstore.storage.location.abstract_location import PARTIAL, Buffer


def partial_path(path: Path) -> Path:
    """Return a unique path beside ``path`` for a temporary file."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")


class AtomicFile:
    """Writer of a file under a temporary name; ``close`` syncs the file and gives it its final name.

    The temporary name is unique, because a second process may write the same file. The file is locked until it is
    renamed, because ``sweep`` removes unlocked temporary files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = False
        while True:
            self._partial = partial_path(path)
            self._out: BinaryIO = self._partial.open("wb")
            with contextlib.suppress(OSError):  # The file system may not support locks.
                fcntl.flock(self._out, fcntl.LOCK_SH)
            if self._partial.exists():
                _open_files.add(self)
                return
            self._out.close()  # ``sweep`` removed the temporary file before it was locked; try another name.

    def write(self, data: Buffer) -> None:
        self._out.write(data)

    def flush(self) -> None:
        """Write the buffered bytes before a fork, because the forked process would write them too when it ends."""
        if not self._ended and not self._out.closed:
            with contextlib.suppress(OSError):  # The disk may be full; the next write raises the error again.
                self._out.flush()

    def close(self) -> None:
        self._sync()
        self._partial.replace(self._path)
        self._ended = True
        self._out.close()
        sync_folder(self._path.parent)

    def close_new(self) -> bool:
        """Give the file its final name unless a file of that name exists; return whether this was done."""
        self._sync()
        try:
            os.link(self._partial, self._path)  # unlike a rename, a link never replaces an existing file
        except FileExistsError:
            return False
        except OSError:  # The file system has no hard links.
            return self._close_alone()
        else:
            sync_folder(self._path.parent)
            self.abandon()
        return True

    def _close_alone(self) -> bool:
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
            with contextlib.suppress(OSError):  # Closing writes buffered bytes, which fails if the disk is full.
                self._out.close()
        finally:
            self._partial.unlink(missing_ok=True)


_open_files: weakref.WeakSet[AtomicFile] = weakref.WeakSet()


def _flush_all() -> None:
    for file in list(_open_files):
        file.flush()


os.register_at_fork(before=_flush_all)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and sync them, so that they survive a crash of the machine.

    Raise UsageError if the path is too long for its file system.
    """
    try:
        if not path.is_dir():
            make_folder(path.parent)
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise UsageError(f"{path} is too long for its file system; give a shorter path") from None


def sync_folder(path: Path) -> None:
    """Write a folder's entries to the disk, so that new and renamed files outlast a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def sync(descriptor: int) -> None:
    """Flush an open file, or the entries of an open folder, to the disk.

    On macOS, fsync leaves data in the disk's cache. F_FULLFSYNC flushes that cache, but some file systems lack it.
    """
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)
