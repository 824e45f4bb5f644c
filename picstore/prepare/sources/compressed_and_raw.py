"""Readers of images that formats store in compressed blocks or as plain pixels.

A block (zstd, gzip, bzip2) is decompressed whole, and one block is cached. Plain pixels become PGM, PPM or PNG files.
"""

from __future__ import annotations

import bz2
import functools
import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.errors import Corrupt, ImageError, TooLarge, Truncated
from picstore.prepare.sources.inputs import MAX_INPUT, Input, read_input
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.storage.format.zstd import ZstdDecompressor, ZstdError

MAX_DECOMPRESSED = 1 << 32  # largest size in bytes to which a compressed block may decompress
# A block of n bytes must not state more than _SMALL + n * _MAX_RATIO decompressed bytes; images and masks need less.
_MAX_RATIO = 256
_SMALL = 64 << 20
CODECS = ("zstd", "gz", "bz2")
_KEY = struct.Struct("<8sQQQ")


@dataclass(frozen=True, slots=True)
class CompressedBlock:
    """Byte range of a file that was compressed as a whole by ``codec``, one of CODECS; sizes are in bytes."""

    codec: str
    offset: int
    size: int
    decompressed_size: int

    def to_key(self) -> bytes:
        """Return the block's fields packed as the ``key`` of an input that :func:`read_compressed` reads."""
        return _KEY.pack(self.codec.encode(), self.offset, self.size, self.decompressed_size)


class DecompressedBlock:
    """Decompressed data of a :class:`CompressedBlock`, to be read like a :class:`SourceFile`."""

    def __init__(self, data: bytes, path: str) -> None:
        self._data, self.path, self.printable_path, self.size = data, path, printable(path), len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Read exactly ``size`` bytes; raise Truncated if the block ends earlier."""
        if size < 0 or offset < 0 or offset + size > self.size:
            what = f"{size:,} bytes are said to be here, unpacked there are {self.size:,}"
            raise Truncated(what, self.printable_path, offset)
        return bytes(self._data[offset : offset + size])


@functools.lru_cache(1)
def decompress_block(path: str, block: CompressedBlock, version: str) -> DecompressedBlock:
    """Decompress a block of a file. Memory grows with the bytes decompressed so far, whatever size the file states.

    Raise Changed if the file's version is not ``version``; an empty string fits any version. Raise Damage if the block
    does not decompress to ``decompressed_size`` bytes, or if ``decompressed_size`` is implausibly large.
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
    if codec == "zstd":
        data: bytes = ZstdDecompressor().decompress(packed, limit)
        return data
    if codec == "gz":
        return zlib.decompressobj(wbits=31).decompress(packed, limit)
    return bz2.BZ2Decompressor().decompress(packed, limit)


def read_compressed(source: Input) -> bytes:
    """Read an input that lies in the compressed block that ``Input.key`` states, at ``offset`` after decompression."""
    codec, *numbers = _KEY.unpack(source.key)
    block = CompressedBlock(codec.rstrip(b"\0").decode(), *numbers)
    return decompress_block(source.path, block, source.version).read(source.offset, source.size)


# Header of a PIL image that MosaicML or LitData wrote: width, height and length of the mode's name.
_PIL_HEADER = struct.Struct("<III")
_MODES = {"L": 1, "RGB": 3, "RGBA": 4}


def netpbm(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Return pixels as a PGM (1 channel) or PPM (3 channels) file; raise ImageError if the number of bytes is wrong."""
    if channels not in (1, 3) or min(width, height) < 1 or len(pixels) != width * height * channels:
        raise ImageError(f"{len(pixels):,} bytes are not {width} × {height} pixels of {channels} channels")
    return b"%s %d %d 255\n" % (b"P5" if channels == 1 else b"P6", width, height) + pixels


def image_file(array: U8) -> bytes:
    """Encode pixels, uint8 (H, W), (H, W, C) or (C, H, W), C 1, 3 or 4, as an image file; else raise ImageError."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise ImageError(f"array of {array.dtype} {array.shape}; images are uint8 (H, W), (H, W, C) or (C, H, W)")
    if array.ndim == 2:
        array = array[..., None]
    if array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    height, width, channels = array.shape
    if channels == 4 and array.size:
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(array)).save(out, "PNG", compress_level=0)
        return out.getvalue()
    return netpbm(array.tobytes(), width, height, channels)


def reader_in_block(encoding: str, block: CompressedBlock | None) -> tuple[Callable[[Input], bytes] | None, bytes]:
    """Return the reader and the key of an input whose image lies in ``block``, or in a plain file if it is None."""
    if encoding == "pil":
        return (read_pil, b"") if block is None else (read_compressed_pil, block.to_key())
    return (None, b"") if block is None else (read_compressed, block.to_key())


def read_rgb(source: Input) -> bytes:
    """Read an input stored as raw RGB pixels, and return a PPM file; ``key`` of the input is width and height, u32."""
    width, height = struct.unpack("<II", source.key)
    return netpbm(_read_range(source), width, height, 3)


def read_pil(source: Input) -> bytes:
    """Read a PIL image as MosaicML and LitData store it (width, height, mode, pixels), and return an image file."""
    return _pil_to_file(_read_range(source))


def read_compressed_pil(source: Input) -> bytes:
    """Read a PIL image that MosaicML or LitData stored in a compressed block, and return an image file."""
    return _pil_to_file(read_compressed(source))


def _read_range(source: Input) -> bytes:
    return read_input(Input(source.name, -1, source.path, source.offset, source.size, version=source.version))


def _pil_to_file(data: bytes) -> bytes:
    if len(data) < _PIL_HEADER.size:
        raise ImageError("truncated: no PIL image")
    width, height, length = _PIL_HEADER.unpack_from(data)
    start = _PIL_HEADER.size + length
    mode = data[_PIL_HEADER.size : min(start, 64)].decode("ascii", "replace")
    if mode not in _MODES:
        raise ImageError(f"PIL image of mode {mode!r}; L, RGB and RGBA can be read")
    if width * height * _MODES[mode] != len(data) - start or not 0 < width * height <= MAX_INPUT:
        raise ImageError(f"{len(data) - start:,} bytes are not {width} × {height} pixels of mode {mode}")
    shape = (height, width, _MODES[mode])
    return image_file(np.frombuffer(data, np.uint8, offset=start).reshape(shape))
