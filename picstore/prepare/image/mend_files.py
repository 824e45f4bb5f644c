"""Metadata of PNG and JPEG left out before a file is decoded, so that it never decides whether pixels are read.

Pillow refuses a PNG for a text or a profile of over 1 MiB, also behind the pixels, and for a wrong CRC of either; and a
JPEG for a short APP0, APP2 or APP14 segment. Its limits are global to the process, so they are not changed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from picstore.errors import ImageError
from picstore.jpeg.headers import find_orientation
from picstore.jpeg.markers import APP0, APP1, APP14, iterate_marker_segments

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_APP2, _APP15, _COM = 0xE2, 0xEF, 0xFE
_COLORS = b"tRNS"  # ancillary, but changes pixels
_EXIF_TEXT = b"Raw profile type exif\0"  # keyword of the text in which ImageMagick writes EXIF
_MAX_EXIF_TEXT = 1 << 18  # bytes, also inflated: twice the 64 KiB of EXIF in hexadecimal digits, and lines


@dataclass(frozen=True, slots=True)
class Bare:
    """A file without its metadata.

    Attributes:
        data: the file, with nothing but what decides about pixels and orientation.
        orientation: of a JPEG's EXIF, 1 … 8; None if it is still to be read in ``data``.
        remark: what was damaged in the metadata, empty for nothing.
    """

    data: bytes
    orientation: int | None = None
    remark: str = ""


def leave_out_metadata(data: bytes) -> Bare:
    """Leave out the metadata of a PNG or a JPEG; any other file, and one that cannot be parsed, is returned itself."""
    if data.startswith(_PNG):
        return _bare_png(data)
    if data.startswith(_JPEG):
        return _bare_jpeg(data)
    return Bare(data)


def _bare_png(data: bytes) -> Bare:
    kept, damaged, at, start = [], [], len(_PNG), 0
    exif: set[bytes] = set()
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data) or not kind.isalpha():
            break  # its decoder says what is damaged
        if kind[0] & 0x20 and kind != _COLORS:  # ancillary
            body = memoryview(data)[at + 8 : end - 4]
            sound = zlib.crc32(body, zlib.crc32(kind)) == int.from_bytes(data[end - 4 : end], "big")
            if not sound:
                damaged.append(kind.decode())
            if sound and kind not in exif and _holds_exif(kind, body):
                exif.add(kind)  # one of a kind
            else:
                kept.append(data[start:at])
                start = end
        at = end
        if kind == b"IEND":
            break
    if not kept:
        return Bare(data)
    remark = f"wrong checksum of {', '.join(sorted(set(damaged))[:4])}" if damaged else ""
    return Bare(b"".join((*kept, data[start:])), remark=remark)


def _holds_exif(kind: bytes, body: memoryview) -> bool:
    """Test whether an ancillary chunk of PNG holds EXIF, and so little that Pillow reads it."""
    if kind == b"eXIf":
        return True
    if kind not in (b"tEXt", b"zTXt") or bytes(body[: len(_EXIF_TEXT)]) != _EXIF_TEXT or len(body) > _MAX_EXIF_TEXT:
        return False
    if kind == b"tEXt":
        return True
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(bytes(body[len(_EXIF_TEXT) + 1 :]), _MAX_EXIF_TEXT)
    except zlib.error:
        return False
    return len(text) < _MAX_EXIF_TEXT


def _bare_jpeg(data: bytes) -> Bare:
    kept, exif, rest = [data[:2]], [], 2
    try:
        for marker, body, rest in iterate_marker_segments(data):  # noqa: B007 - the last one's end
            if marker == APP1:
                exif.append(body)
            if _decides_about_pixels(marker, body):
                kept.append(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body)
    except ImageError:
        return Bare(data)  # libjpeg also reads files with bytes between their segments
    return Bare(b"".join((*kept, data[rest:])), find_orientation(exif))


def _decides_about_pixels(marker: int, body: bytes) -> bool:
    """Test whether a segment is none of the application, or one that libjpeg or the conversion of CMYK reads."""
    if marker == APP0:
        return body.startswith(b"JFIF\0") and len(body) >= 14
    if marker == APP14:
        return body.startswith(b"Adobe") and len(body) >= 12
    if marker == _APP2:
        return body.startswith(b"ICC_PROFILE\0") and len(body) > 14
    return marker != _COM and not APP0 <= marker <= _APP15
