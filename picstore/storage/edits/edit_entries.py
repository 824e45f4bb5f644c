"""Edits of a finished dataset as its manifest lists them, and the ``.npy`` files of edits (docs/format.md, "Edits").

A file in ``edits/`` is named by its content and never changed. Size and CRC of the file, which the manifest holds, are
checked before the file's header is parsed. The header must match the form in which NumPy writes headers; it is not
evaluated as Python. Five dtypes are possible, none of objects.
"""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import Array
from picstore.errors import Corrupt, NotADataset, PicstoreError, Truncated, UsageError
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.local import Folder
from picstore.storage.location.regular_file import open_regular
from picstore.storage.location.resolve import EDITS, INDEX, Root, WritableLocation, read_at

_MAGIC = b"\x93NUMPY\x01\x00"
_MAX_HEADER = 4096  # largest number of bytes of a .npy file's header to parse; NumPy writes 128
_HEADER = re.compile(
    rb"\{'descr': '(<i8|<f[248]|\|u1)', 'fortran_order': False, 'shape': \((\d{1,18}(?:, \d{1,18}){0,30}),?\), \}\s*"
)


@dataclass(frozen=True, slots=True)
class NpyFile:
    """File .npy in ``edits/``: path relative to the dataset, size in bytes, and CRC-32C of all bytes."""

    file: str
    bytes: int
    crc32c: int


def pack_npy_file(array: Array) -> tuple[NpyFile, bytes]:
    """Serialize an array as a .npy file, named by the first 64 bits of its bytes' SHA-256; return (file, bytes)."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    raw = out.getvalue()
    return NpyFile(f"{EDITS}/{hashlib.sha256(raw).hexdigest()[:16]}.npy", len(raw), crc32c(raw)), raw


def own_edits_folder(root: WritableLocation) -> WritableLocation:
    """Return a dataset's folder ``edits/``; raise UsageError if it is a symbolic link, which writes would follow."""
    folder = root / EDITS
    if isinstance(folder, Folder) and folder.path.is_symlink():
        raise UsageError(f"{folder} is a symbolic link; replace it by a folder of the same files to edit {root}")
    return folder


def write_npy_file(root: WritableLocation, npy_file: NpyFile, raw: bytes) -> None:
    """Write a .npy file; if a file of its name and size exists, do nothing, because its name is a hash of its bytes."""
    own_edits_folder(root)
    target = root / npy_file.file
    if not target.is_file() or target.size() != npy_file.bytes:
        target.write(raw)


def read_npy_file(root: Root, npy_file: NpyFile) -> Array:
    """Read and check a .npy file, and return its array, memory-mapped if it is local; raise Damage if a check fails."""
    path = root / npy_file.file
    try:
        raw = _map(path, npy_file) if isinstance(path, Folder) else read_at(path, 0, npy_file.bytes, file=str(path))
    except NotADataset as error:
        raise Corrupt("the file is missing; restore it from a backup", str(path)) from error
    if crc32c(raw) != npy_file.crc32c:
        raise Corrupt("the file fails its CRC; restore it from a backup", str(path))
    return parse_npy_file(raw, file=str(path))


def _map(path: Folder, npy_file: NpyFile) -> memoryview:
    if (size := path.size()) != npy_file.bytes:
        raise Truncated(f"the file has {size} of {npy_file.bytes} bytes; restore it from a backup", str(path))
    try:
        with os.fdopen(open_regular(path)[0], "rb") as opened:
            return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise PicstoreError(f"{path} cannot be read: {error.strerror}") from error


def parse_npy_file(raw: bytes | memoryview, *, file: str) -> Array:
    """Return the array in a .npy file, a read-only view of its bytes; raise Corrupt unless picstore wrote it."""
    begin = len(_MAGIC) + 2
    end = begin + int.from_bytes(raw[len(_MAGIC) : begin], "little")
    match = _HEADER.fullmatch(bytes(raw[begin : min(end, _MAX_HEADER)]))
    if raw[: len(_MAGIC)] != _MAGIC or match is None:
        raise Corrupt("not a .npy file that picstore wrote", file)
    dtype, shape = np.dtype(match[1].decode()), tuple(map(int, match[2].split(b", ")))
    rest = memoryview(raw)[end:]
    count = math.prod(shape)
    if count * dtype.itemsize != len(rest):
        raise Corrupt(f"an array of shape {shape} and {dtype} in {len(rest)} bytes", file)
    return np.frombuffer(rest, dtype=dtype, count=count).reshape(shape)


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """Entry of a column in the manifest.

    Attributes:
        kind: ``"numbers"`` or ``"text"``.
        ids: file with the ids of the records that have a value, int64 (n,), ascending.
        values: file with the values: numbers (n, …), or the UTF-8 bytes of all strings, joined.
        ends: file with the offset at which each string ends in the joined bytes, int64 (n,); None for numbers.
    """

    name: str
    kind: str
    ids: NpyFile
    values: NpyFile
    ends: NpyFile | None = None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> ColumnEntry:
        """Build the entry of a column from its object in a manifest's JSON, which has been checked."""
        files = {name: document[name] and NpyFile(**document[name]) for name in ("ids", "values", "ends")}
        return cls(name=document["name"], kind=document["kind"], **files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Edits of a finished dataset, as its manifest lists them.

    Attributes:
        index: file name of the index: ``picstore.idx``, or a file in ``edits/`` after rows were appended.
        deleted: number of deleted records.
        tombstones: file with each deleted record's position among all stored records, int64 (deleted,), ascending; None
            if no record is deleted.
        columns: entries of the columns; a column called ``label`` replaces the records' labels.
    """

    index: str = INDEX
    deleted: int = 0
    tombstones: NpyFile | None = None
    columns: tuple[ColumnEntry, ...] = ()

    @property
    def npy_files(self) -> list[NpyFile]:
        listed = [self.tombstones]
        for entry in self.columns:
            listed += [entry.ids, entry.values, entry.ends]
        return [each for each in listed if each is not None]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Edits:
        """Build the edits from the object ``edits`` in a manifest's JSON, which has been checked."""
        tombstones = document["tombstones"]
        return cls(
            index=document["index"],
            deleted=document["deleted"],
            tombstones=tombstones and NpyFile(**tombstones),
            columns=tuple(ColumnEntry.parse(entry) for entry in document["columns"]),
        )
