"""Local cache of containers of distant datasets: a folder of bounded size, shared by processes without locks.

An entry is one container, written under a temporary name and renamed, so that the entry is whole or absent. The reader
checks the bytes of :meth:`Cache.read` like any container's bytes, and discards an entry that fails. One more entry per
dataset holds the facts of all records, which otherwise are read from the indexes of all containers.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from picstore.errors import NotADataset, PicstoreError, Truncated, UsageError
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import ContainerRef
from picstore.storage.location.abstract_location import PARTIAL
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Allocate, Location, checked_path
from picstore.storage.sizes import parse_size

DEFAULT_LIMIT = "50GiB"

# Name of the file that caches ``record_table.FACTS`` of a dataset's records, and size in bytes of the CRC at its end.
_FACTS, _CRC = "facts", 4
# A process lists the folder, to see what others have written, each time it has written 1/32 of the cache's limit.
_LISTINGS_PER_LIMIT = 32
# Seconds for which a dataset counts as being read after its last read. Its entries are then not evicted to make room
# for others, but only if the cache exceeds its limit.
_ACTIVE_SECONDS = 600
# Seconds for which this process stores nothing after it found the cache full, because a new check lists all files.
_FULL_SECONDS = 60
# Age in seconds above which a temporary file is taken as left by a killed process, and removed.
_ABANDONED_SECONDS = 3600

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class _Entry:
    dataset: str
    used: float  # time when the entry was last read, in seconds since 1970
    size: int
    path: Path


@dataclass(slots=True)
class _Room:
    """Number of bytes that all threads of this process may write to the cache.

    Attributes:
        budget: number of bytes that may be written before the folder is listed again.
        writing: number of bytes of the entries that threads are writing now.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    budget: int = 0
    writing: int = 0


class Cache:
    """Cache of one dataset's containers in a shared folder.

    A full cache evicts entries of datasets that are no longer read, the least recently used first. A dataset that is
    being read keeps its entries; containers that do not fit are not cached. If half of a dataset fits, the cache serves
    50 % of the reads. Evicting the oldest entries would serve 15 %, because epochs read containers in random orders.

    The limit holds for all datasets in the folder. n processes may exceed it by (n - 1)/32 for a while, because each
    lists the folder only after it has written 1/32 of the limit. Raise UsageError if the folder cannot be created, or
    the limit is not a size.

    Args:
        dataset: uuid of the dataset's containers.
        root: location of the dataset. Datasets at different locations share no entries, because an untrusted dataset
            may state another dataset's uuid.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | str, dataset: str, root: Location) -> None:
        self.folder = checked_path(folder).absolute()
        self.limit = parse_size(limit)
        digest = hashlib.sha256(str(root.absolute()).encode("utf-8", "surrogatepass")).hexdigest()
        self._own = self.folder / f"{dataset}-{digest[:16]}"
        # Budgets by process id, because a forked process inherits this dictionary, but may not use its parent's budget.
        self._rooms: dict[int, _Room] = {}
        self._full_until = 0.0
        self._warned = False
        try:
            self._own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the cache {self.folder} cannot be used, {error.strerror}; give another folder"
            ) from error

    def read(self, ref: ContainerRef, size: int, *, allocate: Allocate) -> memoryview | None:
        """Read the cached bytes of a container, without checking them; return None if it is not cached."""
        path = self._path(ref)
        try:
            if path.stat().st_size != size:
                return None
            buffer = Folder(path).read(0, size, file=str(path), allocate=allocate)
            os.utime(path)  # Eviction goes by access time, which reading sets on some file systems only.
        except (OSError, NotADataset, Truncated):  # Another process has just removed the entry.
            return None
        except PicstoreError as error:
            self._warn(error)
            return None
        return buffer

    def read_facts(self, size: int) -> memoryview | None:
        """Map the cached ``record_table.FACTS``, ``size`` bytes, into memory; return None if missing or damaged."""
        try:
            with (self._own / _FACTS).open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError):  # The file is missing or empty.
            return None
        sound = len(mapped) == size + _CRC and crc32c(mapped[:size]) == int.from_bytes(mapped[size:], "little")
        return mapped[:size] if sound else None

    def store_facts(self, facts: bytes) -> None:
        """Write all records' ``record_table.FACTS``, given as bytes, to the cache; log errors and raise none."""
        self._store(self._own / _FACTS, memoryview(facts + crc32c(facts).to_bytes(_CRC, "little")))

    def store(self, ref: ContainerRef, buffer: memoryview) -> None:
        """Write an undamaged container to the cache; log only the first error, such as a full disk, and raise none."""
        self._store(self._path(ref), buffer)

    def _store(self, path: Path, buffer: memoryview) -> None:
        size = len(buffer)
        if time.monotonic() < self._full_until:
            return
        room = self._rooms.setdefault(os.getpid(), _Room())
        try:
            with room.lock:
                if room.budget < size:
                    room.budget = self._evict(size, writing=room.writing)
                if room.budget < size:
                    self._full_until = time.monotonic() + _FULL_SECONDS
                    return
                room.budget -= size
                room.writing += size
            try:
                self._write(path, buffer)
            finally:
                with room.lock:
                    room.writing -= size
        except OSError as error:
            self._warn(error)

    def discard(self, ref: ContainerRef) -> None:
        with contextlib.suppress(OSError):
            self._path(ref).unlink()

    def _path(self, ref: ContainerRef) -> Path:
        return self._own / f"{ref.stream:04d}-{ref.file:06d}-{ref.offset}"

    def _write(self, path: Path, buffer: memoryview) -> None:
        self._own.mkdir(parents=True, exist_ok=True)  # A user may have removed the cache's folders.
        descriptor, partial = tempfile.mkstemp(dir=self._own, suffix=PARTIAL)
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(buffer)
            # Another process, with a wrong clock, may have taken the temporary file for abandoned and removed it.
            with contextlib.suppress(FileNotFoundError):
                Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise

    def _evict(self, size: int, *, writing: int) -> int:
        """Evict entries until ``size`` further bytes fit; ``writing`` is the number of bytes that threads are writing.

        Return the number of bytes that may be written before the folder is listed again.
        """
        wanted = max(size, self.limit // _LISTINGS_PER_LIMIT)
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        # Use the distance from now as an entry's age, because its time lies in the future if the clock was set back.
        now = time.time()
        active = {self._own.name, *(each.dataset for each in entries if abs(now - each.used) <= _ACTIVE_SECONDS)}
        held = writing + sum(entry.size for entry in entries)
        for entry in entries:
            if held > self.limit or (entry.dataset not in active and held + wanted > self.limit):
                with contextlib.suppress(OSError):
                    entry.path.unlink()
                held -= entry.size
        return min(wanted, self.limit - held)

    def _entries(self) -> list[_Entry]:
        """List the entries of all datasets, and remove abandoned temporary files."""
        entries = []
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):  # Another process has just removed the file.
                status = path.stat()
                if path.suffix != PARTIAL:
                    entries.append(_Entry(path.parent.name, status.st_atime, status.st_size, path))
                elif abs(time.time() - status.st_mtime) > _ABANDONED_SECONDS:
                    path.unlink()
        return entries

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("the cache %s cannot be used: %s; reading goes on without it", self.folder, error)
