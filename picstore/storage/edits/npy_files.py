"""Arrays of edits: ``.npy`` files in ``edits/``, named by their content and never changed (docs/format.md, "Edits").

The manifest holds size and CRC of each file, which are checked before its header is parsed. No object arrays, no
pickle.
"""

from __future__ import annotations

import hashlib
import io
import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import Array
from picstore.errors import Corrupt, NotADataset, PicstoreError, Truncated
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import EDITS, Location, read_at

_NAME = re.compile(rf"{EDITS}/[0-9a-f]{{16}}\.npy")
_MAX_HEADER = 4096  # bytes; NumPy's own headers have 128


@dataclass(frozen=True, slots=True)
class NpyFile:
    """A file of ``edits/``: name in the data set, size in bytes, and CRC-32C of its bytes."""

    file: str
    bytes: int
    crc32c: int

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> NpyFile:
        """Parse the manifest's entry of a file; KeyError, TypeError or ValueError where it is malformed."""
        npy_file = cls(document["file"], document["bytes"], document["crc32c"])
        if not _NAME.fullmatch(npy_file.file) or not isinstance(npy_file.bytes, int) or npy_file.bytes < 0:
            raise ValueError(f"{npy_file.file!r} is not the name of a .npy file")
        return npy_file


def pack_npy_file(array: Array) -> tuple[NpyFile, bytes]:
    """Serialise an array; the first 64 bits of its bytes' SHA-256 name the file."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    raw = out.getvalue()
    return NpyFile(f"{EDITS}/{hashlib.sha256(raw).hexdigest()[:16]}.npy", len(raw), crc32c(raw)), raw


def write_npy_file(root: Location, npy_file: NpyFile, raw: bytes) -> None:
    """Write a file unless it is there; a file of that name has the same bytes."""
    target = root / npy_file.file
    if not target.is_file() or target.size() != npy_file.bytes:
        target.write(raw)


def read_npy_file(root: Location, npy_file: NpyFile) -> Array:
    """Read and check an array, mapped in a local folder, so that processes share its memory; Damage where it fails."""
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
        with path.path.open("rb") as opened:
            return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise PicstoreError(f"{path} cannot be read: {error.strerror}") from error


def parse_npy_file(raw: bytes | memoryview, *, file: str) -> Array:
    """Parse the array in a file, read-only and without a copy; Corrupt if picstore does not write such files."""
    head = io.BytesIO(raw[:_MAX_HEADER])
    try:
        version = np.lib.format.read_magic(head)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head, max_header_size=_MAX_HEADER)
    except ValueError as error:
        raise Corrupt(f"not a .npy file that picstore wrote: {error}", file) from error
    rest = memoryview(raw)[head.tell() :]
    count = math.prod(shape)
    if version != (1, 0) or fortran or dtype.hasobject or count * dtype.itemsize != len(rest):
        raise Corrupt(f"an array of shape {shape} and {dtype} in {len(rest)} bytes", file)
    return np.frombuffer(rest, dtype=dtype, count=count).reshape(shape)
