"""Stretches of what is stored compressed: the bytes around them are decompressed, and the last ones are kept."""

from __future__ import annotations

import bz2
import functools
import struct
import zlib
from dataclasses import dataclass

import zstandard

from picstore.errors import Corrupt, TooLarge, Truncated
from picstore.prepare.sources.inputs import Input, SourceFile, printable

MAX_PLAIN = 1 << 32  # bytes that one block may become
CODECS = ("zstd", "gz", "bz2")
_KEY = struct.Struct("<8sQQQ")
_KEPT = 2  # decompressed blocks a process


@dataclass(frozen=True, slots=True)
class Block:
    """Compressed bytes in a file.

    Attributes:
        codec: one of CODECS.
        offset, size: where they are.
        plain: bytes that they become.
    """

    codec: str
    offset: int
    size: int
    plain: int

    def key(self) -> bytes:
        """For the ``key`` of an input that :func:`read_compressed` reads."""
        return _KEY.pack(self.codec.encode(), self.offset, self.size, self.plain)


class Plain:
    """Decompressed bytes, with the interface of :class:`SourceFile`."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data, self.path, self.place, self.size = data, path, printable(path), len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly these bytes; Truncated if there are fewer."""
        if size < 0 or offset < 0 or offset + size > self.size:
            raise Truncated(f"{size:,} bytes are said to be here, unpacked there are {self.size:,}", self.place, offset)
        return self._data[offset : offset + size]


@functools.lru_cache(_KEPT)
def decompressed(path: str, block: Block) -> Plain:
    """The bytes of a block.

    Raises:
        Damage: they are not what the codec wrote, or more or fewer than was said.
    """
    with SourceFile(path) as file:
        if block.plain > MAX_PLAIN:
            raise TooLarge(f"{block.plain:,} bytes unpacked", file.place, block.offset)
        packed = file.read(block.offset, block.size)
        try:
            data = _decompress(block.codec, packed, block.plain + 1)
        except (zstandard.ZstdError, zlib.error, OSError, EOFError, ValueError) as error:
            raise Corrupt(f"cannot be unpacked ({block.codec}): {error}", file.place, block.offset) from error
        if len(data) != block.plain:
            raise Corrupt(f"not the {block.plain:,} bytes it should be unpacked", file.place, block.offset)
        return Plain(data, path)


def _decompress(codec: str, packed: bytes, limit: int) -> bytes:
    """At most ``limit`` bytes."""
    if codec == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            return reader.read(limit)
    if codec == "gz":
        return zlib.decompressobj(wbits=31).decompress(packed, limit)
    return bz2.BZ2Decompressor().decompress(packed, limit)


def read_compressed(source: Input) -> bytes:
    """Reader of an input that lies at ``offset`` of a block's decompressed bytes."""
    codec, *numbers = _KEY.unpack(source.key)
    return decompressed(source.path, Block(codec.rstrip(b"\0").decode(), *numbers)).read(source.offset, source.size)
