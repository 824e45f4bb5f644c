"""Arrays beside a data set, each in a ``.npy`` file of ``edits/`` that is named by its content and never changed.

What names a part says its size and CRC, so nothing of it is trusted before that holds. No object arrays, no pickle.
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
class Part:
    """A file of ``edits/``: its name in the data set, its bytes, and the CRC-32C of all of them."""

    file: str
    bytes: int
    crc32c: int

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Part:
        """A part as the manifest names it; ValueError or KeyError for what is none."""
        part = cls(document["file"], document["bytes"], document["crc32c"])
        if not _NAME.fullmatch(part.file) or not isinstance(part.bytes, int) or part.bytes < 0:
            raise ValueError(f"{part.file!r} is no part")
        return part


def pack_part(array: Array) -> tuple[Part, bytes]:
    """The file of an array, and what names it: the first 64 bits of the file's SHA-256."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    raw = out.getvalue()
    return Part(f"{EDITS}/{hashlib.sha256(raw).hexdigest()[:16]}.npy", len(raw), crc32c(raw)), raw


def write_part(root: Location, part: Part, raw: bytes) -> None:
    """Write a file under its name; one that is there already is the same."""
    target = root / part.file
    if not target.is_file() or target.size() != part.bytes:
        target.write(raw)


def read_part(root: Location, part: Part) -> Array:
    """Read and check an array; that of a folder is mapped, so that processes share its memory.

    Raises:
        Damage: it is missing, or not what it should be.
    """
    place = root / part.file
    try:
        raw = _map(place, part) if isinstance(place, Folder) else read_at(place, 0, part.bytes, place=str(place))
    except NotADataset as error:
        raise Corrupt("the file is missing; restore it from a copy", str(place)) from error
    if crc32c(raw) != part.crc32c:
        raise Corrupt("the file fails its CRC; restore it from a copy", str(place))
    return parse_part(raw, place=str(place))


def _map(place: Folder, part: Part) -> memoryview:
    if (size := place.size()) != part.bytes:
        raise Truncated(f"the file has {size} of {part.bytes} bytes; restore it from a copy", str(place))
    try:
        with place.path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise PicstoreError(f"{place} cannot be read: {error.strerror}") from error


def parse_part(raw: bytes | memoryview, *, place: str) -> Array:
    """The array in a file, without a copy and read-only; Corrupt where it is not of the form that picstore writes."""
    head = io.BytesIO(raw[:_MAX_HEADER])
    try:
        version = np.lib.format.read_magic(head)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(head, max_header_size=_MAX_HEADER)
    except ValueError as error:
        raise Corrupt(f"not a .npy file that picstore wrote: {error}", place) from error
    rest = memoryview(raw)[head.tell() :]
    count = math.prod(shape)
    if version != (1, 0) or fortran or dtype.hasobject or count * dtype.itemsize != len(rest):
        raise Corrupt(f"an array of shape {shape} and {dtype} in {len(rest)} bytes", place)
    return np.frombuffer(rest, dtype=dtype, count=count).reshape(shape)
