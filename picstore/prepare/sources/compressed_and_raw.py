"""Inputs inside compressed blocks (zstd, gzip, bzip2): a block is decompressed whole, and the last ones are cached."""

from __future__ import annotations

import bz2
import functools
import struct
import zlib
from dataclasses import dataclass

from picstore.errors import Corrupt, TooLarge, Truncated
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.storage.format.zstd import ZstdDecompressor, ZstdError

MAX_DECOMPRESSED = 1 << 32  # bytes of one block
_MAX_RATIO = 256  # of decompressed bytes to compressed ones, beyond _SMALL; shards are of images, and masks
_SMALL = 64 << 20  # bytes
CODECS = ("zstd", "gz", "bz2")
_KEY = struct.Struct("<8sQQQ")


@dataclass(frozen=True, slots=True)
class CompressedBlock:
    """A range of compressed bytes in a file; ``codec`` is one of CODECS."""

    codec: str
    offset: int
    size: int
    decompressed_size: int

    def to_key(self) -> bytes:
        """Pack as the ``key`` of an input for :func:`read_compressed`."""
        return _KEY.pack(self.codec.encode(), self.offset, self.size, self.decompressed_size)


class DecompressedBlock:
    """Decompressed bytes with the interface of :class:`SourceFile`."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data, self.path, self.printable_path, self.size = data, path, printable(path), len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Read exactly ``size`` bytes; Truncated if there are fewer."""
        if size < 0 or offset < 0 or offset + size > self.size:
            what = f"{size:,} bytes are said to be here, unpacked there are {self.size:,}"
            raise Truncated(what, self.printable_path, offset)
        return bytes(self._data[offset : offset + size])


@functools.lru_cache(1)
def decompress_block(path: str, block: CompressedBlock, version: str) -> DecompressedBlock:
    """Decompress a block of a file; Damage if it is not of ``decompressed_size``, or too large for its bytes.

    The file must have ``version``, unless that is empty; Changed if it has not.

    Memory is taken as data comes out, not as the block claims.
    """
    with SourceFile(path, version=version) as file:
        if block.decompressed_size > min(MAX_DECOMPRESSED, _SMALL + _MAX_RATIO * block.size):
            what = f"{block.decompressed_size:,} bytes unpacked, of {block.size:,}"
            raise TooLarge(what, file.printable_path, block.offset)
        packed = file.read(block.offset, block.size)
        try:
            data = _decompress(block.codec, packed, block.decompressed_size + 1)
        except (ZstdError, zlib.error, OSError, EOFError, ValueError) as error:
            what = f"cannot be unpacked ({block.codec}): {error}"
            raise Corrupt(what, file.printable_path, block.offset) from error
        if len(data) != block.decompressed_size:
            what = f"not the {block.decompressed_size:,} bytes it should be unpacked"
            raise Corrupt(what, file.printable_path, block.offset)
        return DecompressedBlock(data, path)


def _decompress(codec: str, packed: bytes, limit: int) -> bytes:
    """Decompress at most ``limit`` bytes."""
    if codec == "zstd":
        data: bytes = ZstdDecompressor().decompress(packed, limit)
        return data
    if codec == "gz":
        return zlib.decompressobj(wbits=31).decompress(packed, limit)
    return bz2.BZ2Decompressor().decompress(packed, limit)


def read_compressed(source: Input) -> bytes:
    """Reader of an input whose ``offset`` and ``size`` are in a block's decompressed bytes; ``key`` is the block."""
    codec, *numbers = _KEY.unpack(source.key)
    block = CompressedBlock(codec.rstrip(b"\0").decode(), *numbers)
    return decompress_block(source.path, block, source.version).read(source.offset, source.size)
