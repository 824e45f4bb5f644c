"""A folder that keeps containers of data sets far away, bounded, shared by any number of processes without locks.

An entry is one container, written under a temporary name and renamed, so it is whole or absent. Nothing is trusted
because it is here: what :meth:`Cache.read` gives is checked like any container, and the reader discards what fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from picstore.errors import NotADataset, PicstoreError, Truncated, UsageError
from picstore.storage.format.container import ContainerRef
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import PARTIAL, Allocate
from picstore.storage.sizes import parse_size

DEFAULT_LIMIT = "50GiB"

_SHARE = 32  # of the limit, so much is written before the folder is listed again
_ACTIVE = 600  # seconds since its last use in which a data set keeps what it has
_FULL = 60  # seconds before a full cache is looked at again
_ABANDONED = 3600  # seconds after which a temporary file is taken for one that a killed process left

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class _Entry:
    used: float  # seconds
    size: int
    path: Path

    @property
    def dataset(self) -> str:
        return self.path.parent.name


class Cache:
    """The containers of one data set in a shared folder.

    A full cache makes room by removing what data sets hold that nobody reads any more, what was used least recently
    first. A data set that is being read keeps what it has, and further containers of it are then not kept: epochs read
    containers in random orders, and a cache of half the data set that replaced its oldest entries would hold 15 % of
    those that are asked for, not 50 %.

    Each process counts what it writes and lists the folder again after 1/32 of the limit, so n processes may together
    exceed the limit by n - 1 times that for a while.

    Args:
        folder: made if it is missing; other data sets may use it too, the limit is for all of them.
        limit: bytes, or text such as ``"50GiB"``.
        dataset: the data set's uuid.

    Raises:
        UsageError: the folder cannot be made or the limit not be understood.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | str, dataset: str) -> None:
        self.folder = Path(folder).absolute()
        self.limit = parse_size(limit)
        self._own = self.folder / dataset
        self._room = 0  # bytes that may be written before the folder is listed; threads may lose a count now and then
        self._full_until = 0.0
        self._warned = False
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the cache {self.folder} cannot be used: {error.strerror}") from error

    def read(self, ref: ContainerRef, size: int, *, allocate: Allocate) -> memoryview | None:
        """The bytes kept for a container, unchecked; None where there are none."""
        path = self._path(ref)
        try:
            if path.stat().st_size != size:
                return None
            buffer = Folder(path).read(0, size, file=str(path), allocate=allocate)
            os.utime(path)  # file systems note the time of reading only now and then
        except (OSError, NotADataset, Truncated):  # removed by another process at this moment
            return None
        except PicstoreError as error:
            self._warn(error)
            return None
        return buffer

    def store(self, ref: ContainerRef, buffer: memoryview) -> None:
        """Keep a container that was found sound. Where that fails, as on a full disk, it is not kept."""
        size = len(buffer)
        if time.monotonic() < self._full_until:
            return
        try:
            if self._room < size:
                self._room = self._make_room(size)
            if self._room < size:
                self._full_until = time.monotonic() + _FULL
                return
            self._room -= size
            self._write(self._path(ref), buffer)
        except OSError as error:
            self._warn(error)

    def discard(self, ref: ContainerRef) -> None:
        """Throw an entry away."""
        with contextlib.suppress(OSError):
            self._path(ref).unlink()

    def _path(self, ref: ContainerRef) -> Path:
        return self._own / f"{ref.stream:04d}-{ref.file:06d}-{ref.offset}"

    def _write(self, path: Path, buffer: memoryview) -> None:
        self._own.mkdir(parents=True, exist_ok=True)  # somebody may have cleared the cache
        descriptor, partial = tempfile.mkstemp(dir=self._own, suffix=PARTIAL)
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(buffer)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> int:
        """Make room for ``size`` bytes and more where that can be; returns how many may be written."""
        wanted = max(size, self.limit // _SHARE)
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        used = {entry.dataset: entry.used for entry in entries}
        used[self._own.name] = now = time.time()
        held = sum(entry.size for entry in entries)
        for entry in entries:
            unread = now - used[entry.dataset] > _ACTIVE
            if held > self.limit or (unread and held + wanted > self.limit):
                with contextlib.suppress(OSError):  # another process was faster
                    entry.path.unlink()
                held -= entry.size
        return min(wanted, self.limit - held)

    def _entries(self) -> list[_Entry]:
        """All entries of all data sets; temporary files that nobody can be writing any more are removed."""
        entries = []
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):  # removed by another process at this moment
                status = path.stat()
                if path.suffix != PARTIAL:
                    entries.append(_Entry(status.st_atime, status.st_size, path))
                elif time.time() - status.st_mtime > _ABANDONED:
                    path.unlink()
        return entries

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("the cache %s cannot be used: %s; reading goes on without it", self.folder, error)
