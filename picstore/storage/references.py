"""Reading what a container of references refers to: it becomes a container of the images themselves, in memory.

All that uses containers then works as with stored images. Every image is checked by the CRC-32C that it had when it
was indexed, so a source file that has changed is damage with its name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from picstore.arrays import Bools
from picstore.errors import Corrupt, Damage, NotADataset
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import Container
from picstore.storage.format.reference import Reference, unpack_reference
from picstore.storage.location.resolve import Allocate, fresh, map_concurrently
from picstore.storage.references_root import ReferencesRoot

_NEAR = 1 << 18  # bytes; a request to a store costs as much as a megabyte, but here most of the bytes are not needed


@dataclass(frozen=True, slots=True)
class _Blob:
    """An image or attachment of record ``number``, and where it begins in the new payload."""

    number: int
    begin: int
    reference: Reference

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.begin + self.reference.length


def read_references(
    stored: Container, root: ReferencesRoot, *, limit: int, wanted: Bools | None = None, allocate: Allocate = fresh
) -> Container:
    """Read what a container of references refers to, from files below ``root``.

    Records whose bytes have changed or cannot be read are listed as damage, with file and offset.

    Args:
        stored: the container as it is in the index, whole.
        limit: bytes that all images and attachments together may have.
        wanted: bool (n,), the records to read; all by default. Others have an empty image.
        allocate: makes the memory of the images.

    Raises:
        Corrupt: the references name more than ``limit`` bytes.
        PicstoreError: a store cannot be reached.
    """
    found, blobs = _resolve(stored, root, limit, wanted)
    by_file: dict[str, list[_Blob]] = defaultdict(list)
    for blob in blobs:
        by_file[blob.reference.path].append(blob)
    payload = allocate(max(1, sum(blob.reference.length for blob in blobs)))

    def read(path: str) -> list[tuple[_Blob, Damage]]:
        return _read_blobs(root, path, by_file[path], payload)

    for losses in map_concurrently(read, by_file):
        for blob, cause in losses:
            found.add_loss(blob.number, cause)
    return replace(found, buffer=payload.toreadonly(), read_size=stored.read_size + len(payload))


def open_references(stored: Container, root: ReferencesRoot, *, limit: int) -> Container:
    """Describe the images that a container refers to; each is read and checked on its first use.

    Arguments and errors: see :func:`read_references`.
    """
    found, blobs = _resolve(stored, root, limit)
    by_begin = {blob.begin: blob for blob in blobs}

    def read(begin: int, length: int) -> memoryview:
        blob, payload = by_begin[begin], fresh(length)
        for _, cause in _read_blobs(root, blob.reference.path, [replace(blob, begin=0)], payload):
            raise cause
        return payload.toreadonly()

    return replace(found, read=read)


def _resolve(
    stored: Container, root: ReferencesRoot, limit: int, wanted: Bools | None = None
) -> tuple[Container, list[_Blob]]:
    """Parse the references and lay out the payload; index and attachment table get its offsets and checksums."""
    found = replace(stored, good=stored.good.copy(), damage=list(stored.damage), causes=dict(stored.causes))
    starts = np.column_stack((stored.index["offset"], stored.attached["offset"])).astype(np.int64)
    lengths = np.column_stack((stored.index["length"], stored.attached["length"])).astype(np.int64)
    cells = np.zeros((*starts.shape, 3), np.int64)  # offset, length, checksum
    blobs: list[_Blob] = []
    end = 0
    for number in np.flatnonzero(stored.good if wanted is None else stored.good & wanted).tolist():
        try:
            parsed = [
                (k, unpack_reference(stored.buffer[first : first + length]))
                for k, (first, length) in enumerate(zip(starts[number].tolist(), lengths[number].tolist(), strict=True))
                if length
            ]
        except Corrupt as error:
            found.mark_lost(number, f"record {stored.index['id'][number]}: {error.what}", int(starts[number, 0]))
            continue
        for k, reference in parsed:
            cells[number, k] = end, reference.length, reference.crc
            blobs.append(_Blob(number, end, reference))
            end += reference.length
            if end > limit:
                raise stored.ref.corrupt(f"its references name more than the {limit:,} bytes that the index says")
    found.index, found.attached = stored.index.copy(), stored.attached.copy()
    for k, name in enumerate(("offset", "length", "crc")):
        found.index[name], found.attached[name] = cells[:, 0, k], cells[:, 1:, k]
    found.origin = _origins(blobs, root) if blobs else None
    return found, blobs


def _origins(blobs: Sequence[_Blob], root: ReferencesRoot) -> Callable[[int], tuple[str, int]]:
    """Make a function that finds file and offset of a byte of the payload."""
    begins = [blob.begin for blob in blobs]

    def origin(offset: int) -> tuple[str, int]:
        blob = blobs[bisect_right(begins, offset) - 1]
        return str(root.folder / blob.reference.path), blob.reference.offset + offset - blob.begin

    return origin


def _read_blobs(
    root: ReferencesRoot, path: str, blobs: Sequence[_Blob], payload: memoryview
) -> list[tuple[_Blob, Damage]]:
    """Read byte ranges of a file to their places in the payload; return the lost ranges, each with its cause."""
    name = str(root.folder / path)
    pieces = [(blob.reference.offset, payload[blob.begin : blob.end]) for blob in blobs]
    try:
        root.file(path).read_pieces(pieces, file=name, near=_NEAR)
    except NotADataset:
        return [(blob, Damage("the file is missing", name, blob.reference.offset)) for blob in blobs]
    except Damage as error:
        if len(blobs) == 1:
            return [(blobs[0], error)]
        return [loss for blob in blobs for loss in _read_blobs(root, path, [blob], payload)]
    return [
        (blob, Corrupt("its bytes have changed since they were indexed", name, blob.reference.offset))
        for blob, (_, memory) in zip(blobs, pieces, strict=True)
        if crc32c(memory) != blob.reference.crc
    ]
