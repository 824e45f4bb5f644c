"""Changes to a file before it is decoded, so that neither its metadata nor a library's fault changes its pixels.

Pillow rejects a PNG if a text or profile exceeds 1 MiB or has a wrong CRC, even after the pixels, and a JPEG if an
APP0, APP2 or APP14 segment is too short. Pillow's limits are global to the process, so they are not changed.

This module also corrects files that Pillow is known to read wrongly, before or after Pillow opens them. Each case is in
tests/prepare/image/test_known_pixels.py; ``format_decoders`` rejects the files that cannot be corrected.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageFile

from picstore.errors import ImageError
from picstore.jpeg.headers import find_orientation
from picstore.jpeg.markers import APP0, APP1, APP14, iterate_marker_segments

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_APP2, _APP15, _COM = 0xE2, 0xEF, 0xFE
_COLORS = b"tRNS"  # PNG's ancillary chunk of transparent colors, which affects pixels
# Keyword of the PNG text chunk into which ImageMagick writes EXIF.
_EXIF_TEXT = b"Raw profile type exif\0"
# Largest size in bytes of a text chunk with EXIF, compressed or inflated; 64 KiB of EXIF take 128 KiB as hexadecimal.
_MAX_EXIF_TEXT = 1 << 18

_XPM = b"/* XPM */"
_XPM_HEAD = re.compile(rb'^"(\d+) +(\d+) +(\d+) +(\d+)', re.MULTILINE)
_XPM_COLOR = re.compile(rb"(\sc\s+#)([0-9A-Fa-f]+)")


@dataclass(frozen=True, slots=True)
class Bare:
    """Image file without the metadata that does not affect the pixels.

    Attributes:
        data: bytes of the file, reduced to the parts that determine pixels and orientation.
        orientation: orientation in a JPEG's EXIF, 1 … 8; None if it is still to be read in ``data``.
        remark: damage found in the metadata; empty if there is none.
    """

    data: bytes
    orientation: int | None = None
    remark: str = ""


class Chunk(NamedTuple):
    """Chunk of a PNG: type, data, stored checksum, and the offsets in the file of the chunk's start and end."""

    kind: bytes
    body: memoryview
    crc: int
    start: int
    end: int

    def is_sound(self) -> bool:
        """Return whether the stored checksum of the chunk is right."""
        return zlib.crc32(self.body, zlib.crc32(self.kind)) == self.crc


def iterate_chunks(png: bytes) -> Iterator[Chunk]:
    """Yield the chunks of a PNG up to IEND, or up to the first chunk that the end of the file cuts off."""
    start, kind = len(_PNG), b""
    while kind != b"IEND" and start + 12 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, start)
        end = start + 12 + length
        if end > len(png):
            return
        body = memoryview(png)[start + 8 : end - 4]
        yield Chunk(kind, body, int.from_bytes(png[end - 4 : end], "big"), start, end)
        start = end


def leave_out_metadata(data: bytes) -> Bare:
    """Leave out a PNG's or JPEG's metadata; a file of another format, or that cannot be parsed, remains unchanged."""
    if data.startswith(_PNG):
        return _bare_png(data)
    if data.startswith(_JPEG):
        return _bare_jpeg(data)
    return Bare(data)


def _bare_png(data: bytes) -> Bare:
    kept, damaged, copied = [], set(), 0
    exif: set[bytes] = set()
    for chunk in iterate_chunks(data):
        if not chunk.kind.isalpha():
            break  # The chunk's type is damaged, which the decoder will report.
        is_ancillary = chunk.kind[0] & 0x20
        if not is_ancillary or chunk.kind == _COLORS:
            continue
        sound = chunk.is_sound()
        if not sound:
            damaged.add(chunk.kind.decode())
        if sound and chunk.kind not in exif and _holds_exif(chunk):
            exif.add(chunk.kind)  # Only the first EXIF chunk of each type is kept.
        else:
            kept.append(data[copied : chunk.start])
            copied = chunk.end
    if not kept:
        return Bare(data)
    remark = f"wrong checksum of {', '.join(sorted(damaged)[:4])}" if damaged else ""
    return Bare(b"".join((*kept, data[copied:])), remark=remark)


def _holds_exif(chunk: Chunk) -> bool:
    """Return whether a PNG's ancillary chunk holds EXIF; text that is too large to be EXIF does not count."""
    kind, body = chunk.kind, chunk.body
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
        for marker, body, rest in iterate_marker_segments(data):  # noqa: B007 - used after the loop
            if marker == APP1:
                exif.append(body)
            if _decides_about_pixels(marker, body):
                kept.append(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body)
    except ImageError:
        return Bare(data)  # Leave a file with bytes between segments unchanged; libjpeg can read such files.
    return Bare(b"".join((*kept, data[rest:])), find_orientation(exif))


def _decides_about_pixels(marker: int, body: bytes) -> bool:
    """Return whether a JPEG's marker segment affects how libjpeg decodes pixels or how CMYK is converted."""
    if marker == APP0:
        return body.startswith(b"JFIF\0") and len(body) >= 14
    if marker == APP14:
        return body.startswith(b"Adobe") and len(body) >= 12
    if marker == _APP2:
        return body.startswith(b"ICC_PROFILE\0") and len(body) > 14
    return marker != _COM and not APP0 <= marker <= _APP15


def mend_data(data: bytes) -> bytes:
    """Rewrite the colors of an XPM to two digits per channel; return a file of another format unchanged.

    Pillow takes the last six digits of any color. Instead, channels of more than two digits keep the upper two digits,
    and single digits are doubled, so that ``#fff`` is white.
    """
    if not data.startswith(_XPM):
        return data
    head = _XPM_HEAD.search(data)
    if head is None or len(head[3]) > 6:
        return data
    start = data.find(b"\n", head.end()) + 1
    *colors, rest = data[start:].split(b"\n", int(head[3])) if start else [data]
    # Number of characters to skip in a color's line: a quotation mark and a pixel's name, which may look like a color.
    key = 1 + int(head[4][:3])
    mended = [line[:key] + _XPM_COLOR.sub(_two_digits, line[key:]) for line in colors]
    return data[:start] + b"\n".join((*mended, rest))


def _two_digits(match: re.Match[bytes]) -> bytes:
    digits = match[2]
    if len(digits) % 3 or not 3 <= len(digits) <= 12:
        raise ImageError(f"damaged XPM: a color of {len(digits)} digits")
    each = len(digits) // 3
    channels = [digits[k : k + each] for k in range(0, len(digits), each)]
    return match[1] + b"".join(channel[:2] if each > 1 else 2 * channel for channel in channels)


def mend_image(image: Image.Image) -> Image.Image:
    """Correct an image that Pillow opened: the transparent color of a PNG, and the alpha of a TGA of 16 bits.

    Pillow scales a PNG's samples to 8 bits, but not its transparent color. A TGA of 16 bits becomes opaque, because its
    sixteenth bit means opaque to some programs and transparent to others.
    """
    if not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return image
    rawmode = image.tile[0][3]
    if image.format == "TGA" and isinstance(rawmode, tuple) and rawmode[0] == "BGRA;15Z":
        return image.convert("RGB")
    value = image.info.get("transparency")
    if image.format == "PNG" and value is not None:
        if rawmode == "RGB;16B":
            image.info["transparency"] = tuple(each >> 8 for each in value)
        elif rawmode in ("L;2", "L;4"):
            image.info["transparency"] = value * (85 if rawmode == "L;2" else 17)
        elif rawmode == "1":
            image.info["transparency"] = 255 if value else 0
    return image
