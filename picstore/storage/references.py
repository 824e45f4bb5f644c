"""References of an index: folder of the referenced files, permission to read in it, and reading the files' bytes.

An index from elsewhere could name any folder of this machine, or a store to which obstore signs in. So an index reaches
files only in its own folder, unless the user gives the root or has made the index, which `picstore index` notes in the
user's state folder (docs/index-in-place.md). Reading turns a container of references into a container of the images, in
memory. Every image is checked by its CRC-32C from indexing, so a changed source file is damage that names the file.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from picstore.arrays import Bools
from picstore.errors import Corrupt, Damage, NotADataset, PicstoreError, UsageError
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import Container
from picstore.storage.format.reference import Reference, unpack_reference
from picstore.storage.location.local import Folder
from picstore.storage.location.redact import redact
from picstore.storage.location.resolve import (
    MANIFEST,
    Allocate,
    Location,
    Where,
    fresh,
    is_relative,
    locate,
    map_concurrently,
)
from picstore.storage.manifest import Manifest, read_manifest

# Path in the user's state folder of the file that lists the indexes made by this user.
_NOTES = Path("picstore") / "indexes"
# Byte ranges of a file that are at most this many bytes apart are read with one request. The time of a request would
# suffice to read a megabyte, but the limit is lower, because bytes between the ranges are read in vain.
_NEAR = 1 << 18

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class ReferencesRoot:
    """Folder of the image files of an index; if ``confined`` is true, no symbolic link may lead out of it."""

    folder: Location
    confined: bool = False

    def file(self, path: str) -> Location:
        """Return the file at a path below the root; raise Corrupt if a link leads out of a confined root."""
        file = self.folder / path
        if self.leads_out(str(file)):
            raise Corrupt("a link leads out of the folder of the index", str(file))
        return file

    def leads_out(self, path: str) -> bool:
        """Return whether a symbolic link leads a file's path out of this root; always False if links may do so."""
        return self.confined and isinstance(self.folder, Folder) and not _lies_in(path, str(self.folder))


def find_references_root(
    where: Location, manifest: Manifest, root: Where | ReferencesRoot | None = None
) -> ReferencesRoot | None:
    """Return the folder that holds an index's images; None for a dataset that holds its images itself.

    An index is a dataset that refers to image files. ``root`` is the folder that the user gave, or None for the folder
    that the index names.

    Raises:
        NotADataset: the folder does not exist.
        UsageError: the index names a folder outside of its own, and this user has not made the index; or ``root`` is
            given for a dataset that holds its images.
    """
    if manifest.references is None:
        if root is not None:
            raise UsageError(f"{where} holds its images; leave out the root, which only an index takes")
        return None
    if isinstance(root, ReferencesRoot):
        return root
    found = (
        _find(where, manifest, manifest.references.root) if root is None else ReferencesRoot(locate(root).absolute())
    )
    if not found.folder.is_folder():
        raise NotADataset(f"{where} is an index of the images in {found.folder}, which does not exist")
    return found


def _find(where: Location, manifest: Manifest, stated: str) -> ReferencesRoot:
    """Return the folder of images that the index at ``where`` states: a URL, or a path relative to the index."""
    if is_relative(stated):
        folder = where.absolute() / stated
        if isinstance(folder, Folder):
            stated = os.path.normpath(folder)
            if _lies_in(stated, str(where)):
                return ReferencesRoot(Folder(Path(stated)), confined=True)
        elif ".." not in PurePosixPath(stated).parts:
            return ReferencesRoot(folder, confined=True)
    elif _key(manifest) in _noted():
        return ReferencesRoot(locate(stated))
    raise UsageError(
        f"{where} is an index of images outside of its folder, and no `picstore index` of this user made it; if you "
        "trust it, give the folder of the images: --root {0!r}, or picstore.Dataset({1!r}, root={0!r})".format(
            redact(stated), str(where)
        )
    )


def _lies_in(path: str, folder: str) -> bool:
    inner, outer = os.path.realpath(path), os.path.realpath(folder)
    return f"{inner}/".startswith(outer.rstrip("/") + "/")


def indexed_folder(where: Where) -> tuple[Location, ...]:
    """Return a tuple of a local index's folder of images; () if its path is relative, or if there is no local index."""
    location = locate(where)
    if not isinstance(location, Folder) or not (location / MANIFEST).is_file():
        return ()
    try:
        references = read_manifest(location).references
        return () if references is None or is_relative(references.root) else (locate(references.root),)
    except PicstoreError:  # Ignore a damaged manifest here; opening the index raises the error.
        return ()


def note_index(manifest: Manifest) -> None:
    """Add an index to the list of indexes that this user made; log a warning if the list cannot be written."""
    if manifest.references is None or (key := _key(manifest)) in _noted():
        return
    try:
        path = _notes()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{key} {json.dumps(manifest.references.root)}\n".encode())
    except (OSError, RuntimeError) as error:  # RuntimeError is raised if the user has no home.
        logger.warning("that you made this index cannot be noted: %s; give --root to read it", error)


def _noted() -> set[str]:
    try:
        return {line.partition(" ")[0] for line in _notes().read_text("utf-8", "replace").splitlines()}
    except (OSError, RuntimeError):
        return set()


def _notes() -> Path:
    """Return the path of the list of this user's indexes (XDG Base Directory Specification, 0.8)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / _NOTES


def _key(manifest: Manifest) -> str:
    """Return a hash of an index's root and list of files, which identifies the index, because edits change neither."""
    root = None if manifest.references is None else manifest.references.root
    text = json.dumps([root, *map(astuple, manifest.files)])
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Blob:
    """Image or attachment to read for record ``number``, to offset ``begin`` of the payload (all blobs joined)."""

    number: int
    begin: int
    reference: Reference

    @property
    def end(self) -> int:
        return self.begin + self.reference.length


def read_references(
    stored: Container, root: ReferencesRoot, *, limit: int, wanted: Bools | None = None, allocate: Allocate = fresh
) -> Container:
    """Read the images and attachments to which a container of an index refers, from files below ``root``.

    A record whose bytes have changed or cannot be read is listed as damage, with file and offset.

    Args:
        stored: container of the index, read whole.
        limit: largest total number of bytes of the container's images and attachments.
        wanted: bool (n,), marks of the records to read, by default all. Records without a mark get an empty image.

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
    """Return an index's container with images in place of references; each image is read and checked on access.

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
    """Parse a container's references; return a copy of the container, and the blobs (images and attachments) to read.

    Offsets in the copy's index count from the first blob, as if all blobs were joined.
    """
    found = replace(stored, good=stored.good.copy(), damage=list(stored.damage), causes=dict(stored.causes))
    starts = np.column_stack((stored.index["offset"], stored.attached["offset"])).astype(np.int64)
    lengths = np.column_stack((stored.index["length"], stored.attached["length"])).astype(np.int64)
    cells = np.zeros((*starts.shape, 3), np.int64)  # new offset, length and checksum of each image and attachment
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
    """Return a function that maps a byte's offset in the joined ``blobs`` to the byte's file and offset in the file."""
    begins = [blob.begin for blob in blobs]

    def origin(offset: int) -> tuple[str, int]:
        blob = blobs[bisect_right(begins, offset) - 1]
        return str(root.folder / blob.reference.path), blob.reference.offset + offset - blob.begin

    return origin


def _read_blobs(
    root: ReferencesRoot, path: str, blobs: Sequence[_Blob], payload: memoryview
) -> list[tuple[_Blob, Damage]]:
    """Read the ``blobs`` of the file ``path`` into the payload; return those unreadable or changed, with the causes."""
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
