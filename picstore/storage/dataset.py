"""Reading a data set: opened with two reads, random access by position, streaming in stored order."""

from __future__ import annotations

import contextlib
import operator
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from picstore.errors import Damage
from picstore.storage.cache import DEFAULT_LIMIT, Cache
from picstore.storage.container import Container, Place, read_header, unpack
from picstore.storage.layout import SEALED
from picstore.storage.location import Allocate, Location, Where, file_name, fresh, locate, read_at
from picstore.storage.manifest import Manifest, ordinals_of, read_index, read_manifest
from picstore.storage.record import Record

_CACHED_INDEXES = 64  # of containers; each a few 10 kB


class Dataset(Sequence[Record]):
    """A finished data set.

    ``len(ds)`` is the number of records and ``ds[i]`` the i-th in stored order, read alone and checked. Iterating reads
    container by container. Nothing stays open between calls, so a data set can be shared by threads and forked.

    Args:
        path: the data set's directory, or its URL in an object store, such as ``s3://bucket/train``.
        cache: a folder that keeps the containers that were read, for a data set far away; several processes and data
            sets may share it. ``ds[i]`` reads no whole container and does not use it.
        cache_limit: what that folder may hold, in bytes or as text such as ``"50GiB"``.

    Attributes:
        path: where it lies; ``str(ds.path)`` is its path or URL.
        rows: ``layout.INDEX_ROW`` (containers,) in stored order.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion, Damage: see :func:`picstore.storage.manifest.read_manifest`.
        PicstoreError: an object store refuses access or cannot be reached, here or while reading.
        MissingDependency: what object stores need is not installed.
    """

    def __init__(
        self,
        path: Where,
        *,
        cache: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
    ) -> None:
        self.path: Location = locate(path)
        self.manifest: Manifest = read_manifest(self.path)
        self.rows = read_index(self.path, self.manifest)
        self._ordinals = ordinals_of(self.rows)
        self._starts: npt.NDArray[np.int64] = np.zeros(len(self.rows) + 1, dtype=np.int64)
        np.cumsum(self.rows["records"], out=self._starts[1:])
        self._indexes: OrderedDict[int, Container] = OrderedDict()
        self._cache = None if cache is None else Cache(cache, cache_limit, self.manifest.uuid)

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[Any, ...]]:
        """Another process opens it again, wherever it works."""
        cache = (None, DEFAULT_LIMIT) if self._cache is None else (self._cache.folder, self._cache.limit)
        return _open, (self.path.absolute(), *cache)

    @property
    def classes(self) -> list[str]:
        """Names of the classes by label; empty where the source had none."""
        return list(self.manifest.classes)

    @property
    def uuid(self) -> str:
        """Derived from the content: data sets with the same bytes have the same uuid."""
        return self.manifest.uuid

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {len(self)} images, {len(self.classes)} classes)"

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> list[Record]: ...
    def __getitem__(self, i: int | slice) -> Record | list[Record]:
        """The record at a position in stored order; IndexError outside, Damage if it does not hold its CRC."""
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = operator.index(i)
        k = i + len(self) if i < 0 else i
        if not 0 <= k < len(self):
            raise IndexError(f"position {i} of a data set of {len(self)} records")
        number = int(np.searchsorted(self._starts, k, side="right")) - 1
        record = self._index_of(number).record(k - int(self._starts[number]))
        return _owned(record)

    def __iter__(self) -> Iterator[Record]:
        for number in range(len(self.rows)):
            container = self.container(number)
            for k in range(len(container)):
                yield _owned(container.record(k))

    def place(self, number: int) -> Place:
        """Where the ``number``-th container in stored order lies."""
        row = self.rows[number]
        stream, file = int(row["stream"]), int(row["file"])
        return Place(file_name(stream, file), int(row["offset"]), stream, file, int(self._ordinals[number]))

    def container(self, number: int, *, allocate: Allocate = fresh) -> Container:
        """Read and check the ``number``-th container in stored order, into memory that ``allocate`` gives.

        Damage that leaves records readable is listed in the result; raises Damage when nothing can be read.
        """
        place, size = self.place(number), int(self.rows[number]["size"])
        kept = None if self._cache is None else self._kept(self._cache, number, allocate)
        if kept is not None:
            return kept
        buffer = read_at(self.path / place.name, place.offset, size, place=place.name, allocate=allocate)
        container = self._unpack(number, buffer)
        if self._cache is not None and not container.damage:
            self._cache.keep(place, buffer)
        return container

    def _kept(self, cache: Cache, number: int, allocate: Allocate) -> Container | None:
        """A container out of the cache if it is there and sound; a damaged one is thrown away."""
        place = self.place(number)
        buffer = cache.read(place, int(self.rows[number]["size"]), allocate=allocate)
        if buffer is None:
            return None
        with contextlib.suppress(Damage):
            container = self._unpack(number, buffer)
            if not container.damage:
                return container
        cache.discard(place)
        return None

    def entries(self, number: int) -> npt.NDArray[np.void]:
        """Entries of the ``number``-th container, ``layout.ENTRY``, read without its payload; damaged ones left out."""
        container = self._index_of(number)
        return container.index[container.good]

    def _index_of(self, number: int) -> Container:
        """A container of which only the part before the payload was read; a few are kept."""
        container = self._indexes.get(number)
        if container is None:
            try:
                container = self._read_index(number)
            except Damage:
                container = self.container(number)
            self._indexes[number] = container
            while len(self._indexes) > _CACHED_INDEXES:
                self._indexes.popitem(last=False)
        return container

    def _read_index(self, number: int) -> Container:
        place = self.place(number)
        path = self.path / place.name
        first = read_at(path, place.offset, SEALED, place=place.name)
        header, _ = read_header(first, place=place)
        buffer = read_at(path, place.offset, header.payload_at, place=place.name)

        def read(offset: int, length: int) -> memoryview:
            return read_at(path, place.offset + offset, length, place=place.name)

        return self._unpack(number, buffer, read)

    def _unpack(
        self, number: int, buffer: memoryview, read: Callable[[int, int], memoryview] | None = None
    ) -> Container:
        row = self.rows[number]
        return unpack(
            buffer,
            place=self.place(number),
            fields=self.manifest.attachments,
            records=int(row["records"]),
            header_crc=int(row["header_crc"]),
            size=int(row["size"]),
            read=read,
        )


def _open(path: Where, cache: str | os.PathLike[str] | None, cache_limit: int | str) -> Dataset:
    return Dataset(path, cache=cache, cache_limit=cache_limit)


def _owned(record: Record) -> Record:
    """The same record with bytes of its own, so that it does not keep a container in memory."""
    attachments: dict[str, bytes | memoryview] = {name: bytes(blob) for name, blob in record.attachments.items()}
    return Record(record.id, record.label, bytes(record.jpeg), record.info, record.extra_json, attachments)
