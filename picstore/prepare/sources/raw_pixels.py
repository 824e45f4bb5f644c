"""Images that formats store as plain pixels, converted to image files: PGM, PPM or PNG."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.prepare.sources.compressed_and_raw import CompressedBlock, read_compressed
from picstore.prepare.sources.inputs import MAX_INPUT, Input, read_input

_PIL_HEADER = struct.Struct("<III")  # width, height, length of the mode, as MosaicML and LitData write PIL images
_MODES = {"L": 1, "RGB": 3, "RGBA": 4}


def netpbm(pixels: bytes, width: int, height: int, channels: int) -> bytes:
    """Build a PGM (1 channel) or PPM (3 channels) file; ImageError if the pixels are not as many."""
    if channels not in (1, 3) or min(width, height) < 1 or len(pixels) != width * height * channels:
        raise ImageError(f"{len(pixels):,} bytes are not {width} × {height} pixels of {channels} channels")
    return b"%s %d %d 255\n" % (b"P5" if channels == 1 else b"P6", width, height) + pixels


def image_file(array: U8) -> bytes:
    """Encode a uint8 array (H, W), (H, W, C) or (C, H, W), C of 1, 3 or 4, as an image file; ImageError for others."""
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
    """Reader and key of a byte range of a file or of a compressed block; a PIL image if ``encoding`` is pil."""
    if encoding == "pil":
        return (read_pil, b"") if block is None else (read_compressed_pil, block.to_key())
    return (None, b"") if block is None else (read_compressed, block.to_key())


def read_rgb(source: Input) -> bytes:
    """Reader of a byte range of RGB pixels; ``key`` is width and height as u32."""
    width, height = struct.unpack("<II", source.key)
    return netpbm(_read_range(source), width, height, 3)


def read_pil(source: Input) -> bytes:
    """Reader of a PIL image as MosaicML and LitData store it: width, height, mode and its pixels."""
    return _pil_to_file(_read_range(source))


def read_compressed_pil(source: Input) -> bytes:
    """Reader of such a PIL image in a compressed block."""
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
