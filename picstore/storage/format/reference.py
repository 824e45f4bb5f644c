"""References: places of bytes in other programs' files, stored instead of the bytes (docs/format.md, "References")."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from picstore.errors import Corrupt, UsageError
from picstore.storage.format.layout import MAX_CONTAINER, MAX_FILE

MAX_PATH = 1 << 12  # largest number of characters of a path, Linux' PATH_MAX

_FIXED = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Reference:
    """Byte range of an image or attachment in another program's file, and the checksum of the range.

    Attributes:
        path: path of the file, with slashes, below the root folder that the manifest names.
        offset, length: first byte and number of bytes of the range.
        crc: CRC-32C of the bytes.

    Raise UsageError if the path leads out of the root, or if the byte range is empty or impossible.
    """

    path: str
    offset: int
    length: int
    crc: int

    def __post_init__(self) -> None:
        if "\0" in self.path or not {"", ".", ".."}.isdisjoint(self.path.split("/")) or len(self.path) > MAX_PATH:
            raise UsageError(
                f"the path is {self.path[:200]!r}; give at most {MAX_PATH} characters without '.', '..' and zero bytes"
            )
        if not (0 < self.length <= MAX_CONTAINER and 0 <= self.offset <= MAX_FILE):
            raise UsageError(
                f"{self.length:,} bytes at {self.offset:,} of {self.path}; give 1 to {MAX_CONTAINER:,} bytes"
            )

    def pack(self) -> bytes:
        """Serialize the reference; surrogates that ``os.fsdecode`` put into the path become bytes again."""
        return _FIXED.pack(self.offset, self.length, self.crc) + self.path.encode("utf-8", "surrogateescape")


def unpack_reference(blob: bytes | memoryview) -> Reference:
    """Parse the bytes of a reference; raise Corrupt if the bytes are not a reference."""
    if len(blob) <= _FIXED.size or len(blob) > _FIXED.size + MAX_PATH:
        raise Corrupt(f"{len(blob)} bytes are not a reference", "")
    offset, length, crc = _FIXED.unpack_from(blob)
    try:
        return Reference(bytes(blob[_FIXED.size :]).decode("utf-8", "surrogateescape"), offset, length, crc)
    except UsageError as error:
        raise Corrupt(str(error), "") from error
