"""Large TIFF and PNG decoded strip by strip by libvips, where pyvips is installed (the extra ``mozjpeg``).

libvips reads sequentially and keeps up to 75 MiB, where Pillow keeps four bytes a pixel. Only images that need no
conversion are read so: grey or RGB of 8 bits, upright, without alpha, compressed without loss. Pillow reads all others,
and images in which libvips finds fault, so that a result or a reason does not depend on what is installed.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.size_limits import check_size, open_by_pillow
from picstore.prepare.image.strips import strip_boxes

MIN_PIXELS = 1 << 24  # importing pyvips and starting libvips takes 0.1 s
_MIN_BYTES = 1 << 20  # of a file whose headers are read twice, which takes 0.2 ms
_STARTS = b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*"

# Tags of TIFF 6.0 and the values that need no conversion; a tuple is compared as the set of its numbers.
_COMPRESSION, _PHOTOMETRIC, _EXTRA_SAMPLES = 259, 262, 338
_TILE_WIDTH, _SUB_IFDS, _DNG_VERSION = 322, 330, 50706
_LOSSLESS = {1, 5, 8, 32773, 32946}  # none, LZW, Deflate, PackBits, Deflate as before TIFF 6.0's supplement
_USUAL = {258: {8}, 266: {1}, 274: {1}, 284: {1}, 339: {1}}  # bits, fill order, orientation, planes, sample format
# Chunks of PNG that do not change what Pillow makes of the pixels: anywhere, and before the pixels only.
_ANYWHERE = {b"IDAT", b"IEND", b"tEXt", b"tIME"}
_BEFORE_PIXELS = {b"IHDR", b"sRGB", b"gAMA", b"cHRM", b"pHYs", b"iCCP", b"bKGD", b"sBIT"}


@functools.cache
def find_vips() -> Any:
    """Import and configure pyvips; None if it or libvips is not installed."""
    try:
        import pyvips
    except (ImportError, OSError):  # OSError: the binding is installed, the library is not
        return None
    pyvips.concurrency_set(1)  # the workers are processes
    pyvips.cache_set_max(0)  # else it keeps operations on images that are freed
    return pyvips


class FaultFound(Exception):
    """libvips cannot read the image."""


@dataclass(frozen=True, slots=True)
class LargeImage:
    """A large upright TIFF or PNG in grey or RGB, whose strips are decoded as they are asked for.

    Attributes:
        strips: as ``encode_strips`` takes them; raises FaultFound where they cannot be decoded.
        size: width and height.
        origin: "TIFF" or "PNG".
    """

    strips: Iterator[U8]
    size: tuple[int, int]
    origin: str


def open_large_image(data: bytes, *, settings: EncodeSettings) -> LargeImage | None:
    """Open an image that libvips decodes strip by strip; None for all others, refused ones too."""
    if len(data) < _MIN_BYTES or not data.startswith(_STARTS):
        return None
    try:
        image = open_by_pillow(data, ("TIFF", "PNG"))
        check_size(*image.size, max_pixels=settings.max_pixels)
        plain = image.width * image.height >= MIN_PIXELS and _needs_no_conversion(data, image)
    except Exception:  # whatever is wrong with the header, Pillow's way says it
        return None
    vips = find_vips() if plain and max(image.size) <= MAX_SIDE else None
    return None if vips is None else LargeImage(_fetch_strips(vips, data, image), image.size, str(image.format))


def _fetch_strips(vips: Any, data: bytes, image: Image.Image) -> Iterator[U8]:
    load = vips.Image.pngload_source if image.format == "PNG" else vips.Image.tiffload_source
    bands = len(image.getbands())
    try:
        # A source does not copy the file, as buffers do.
        opened = load(vips.Source.new_from_memory(data), access="sequential", fail_on="warning")
        if (opened.width, opened.height, opened.bands, opened.format) != (*image.size, bands, "uchar"):
            raise FaultFound("libvips reads another size or format")
        region = vips.Region.new(opened)
        for left, top, right, bottom in strip_boxes(image.size):
            pixels = np.frombuffer(region.fetch(left, top, right, bottom - top), np.uint8)
            yield pixels.reshape((bottom - top, right, bands) if bands == 3 else (bottom - top, right))
    except vips.Error as error:
        raise FaultFound(str(error)) from error


def _needs_no_conversion(data: bytes, image: Image.Image) -> bool:
    if image.mode not in ("L", "RGB") or image.has_transparency_data:
        return False
    if image.format == "PNG":
        return _is_plain_png(data)
    tags = getattr(image, "tag_v2", {})
    if image.format != "TIFF" or _SUB_IFDS in tags or _DNG_VERSION in tags or data[8:10] == b"CR":
        return False  # another format, or perhaps a camera's raw file
    plain = all(set(np.ravel(tags.get(tag, min(values))).tolist()) == values for tag, values in _USUAL.items())
    photometric = 2 if image.mode == "RGB" else 1
    kind = tags.get(_COMPRESSION, 1) in _LOSSLESS and tags.get(_PHOTOMETRIC) == photometric
    # Pillow reads tiles without compression itself, and takes damaged sizes of tiles otherwise than libtiff.
    raw_tiles = tags.get(_COMPRESSION, 1) == 1 and _TILE_WIDTH in tags
    return plain and kind and not raw_tiles and _EXTRA_SAMPLES not in tags


def _is_plain_png(data: bytes) -> bool:
    """Test whether a PNG has 8 bits, no interlacing, only sound chunks, and none that turns or changes its pixels."""
    at, kind, allowed = 8, b"", _ANYWHERE | _BEFORE_PIXELS
    while kind != b"IEND":
        if at + 12 > len(data):
            return False
        length, kind = struct.unpack_from(">I4s", data, at)
        body = memoryview(data)[at + 8 : at + 8 + length]
        if kind == b"IDAT":
            allowed = _ANYWHERE
        if kind not in allowed or len(data) < at + 12 + length:
            return False
        if zlib.crc32(body, zlib.crc32(kind)) != int.from_bytes(data[at + 8 + length : at + 12 + length], "big"):
            return False
        if kind == b"tEXt" and bytes(body[:16]) == b"Raw profile type":  # it may hold EXIF
            return False
        if kind == b"IHDR" and (length != 13 or body[8] != 8 or body[9] not in (0, 2) or body[12]):
            return False
        at += 12 + length
    return True
