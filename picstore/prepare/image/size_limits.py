"""Limits on the size of an image, checked in its header before memory is allocated or pixels are decoded."""

from __future__ import annotations

import io
import resource
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageFile, UnidentifiedImageError

from picstore.errors import ImageError

# JBIG header (ISO/IEC 11544, 6.2): first and last layer, planes, filler, width, height, stripe height, shifts, options.
_JBIG = struct.Struct(">BBBBIIIBBBB")
# Largest number of resolution layers in a JBIG file. Each layer doubles the width and height of the layer before, so
# the sides of a picture with more layers would exceed 2**31 pixels.
_JBIG_LAYERS = 31
# Number of bytes that hold a JPEG XL signature and size header (ISO/IEC 18181-1), of up to 68 bits, lowest bit first.
_JPEG_XL_HEADER = 11
# Ratio of width to height, by the 3-bit code in a JPEG XL header. With code 0, the header states the width itself.
_JPEG_XL_RATIOS = ((0, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))

# Number of bytes of address space that a decoder may add for libraries and stacks, whatever the image's size.
_DECODER_BYTES = 512 << 20
# Number of bytes of address space that a decoder may add per pixel of the image, for copies and layers.
_DECODER_BYTES_PER_PIXEL = 64


def check_size(width: int, height: int, *, max_pixels: int) -> None:
    """Raise ImageError if a side is below 1, or the image has more than ``max_pixels``."""
    if width < 1 or height < 1:
        raise ImageError(f"an image of {width} × {height} pixels")
    if width * height > max_pixels:
        raise ImageError(
            f"{width} × {height} = {width * height:,} pixels; more than --max-pixels allows ({max_pixels:,})"
        )


def limit_memory(pixels: int) -> None:
    """On Linux, limit this process's address space to its present size plus the bytes to decode ``pixels`` pixels."""
    if sys.platform == "linux":
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        wanted = held + _DECODER_BYTES + _DECODER_BYTES_PER_PIXEL * pixels
        resource.setrlimit(resource.RLIMIT_AS, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def open_by_pillow(data: bytes, formats: Sequence[str]) -> ImageFile.ImageFile:
    """Open an image as ``Image.open`` does, but without Pillow's limit on the number of pixels.

    The caller must check the size. Images inside images, such as the PNG in an icon, are still limited. The limit,
    global to the process, is not changed.
    """
    Image.init()
    for each in formats:
        factory, accept = Image.OPEN[each]
        try:
            accepted = accept is None or accept(data[:16])
            # ``accept`` returns a string, a warning, if this build of Pillow lacks the library for the format.
            if accepted and not isinstance(accepted, str):
                return factory(io.BytesIO(data), "")
        # The file has another format, or its header is damaged.
        except (SyntaxError, IndexError, TypeError, struct.error):
            continue
    raise UnidentifiedImageError


def check_jbig(data: bytes, *, max_pixels: int) -> None:
    """Raise ImageError if a JBIG header is damaged or states too many pixels.

    ImageMagick decodes before it checks: a file of 239 bytes that claimed 268,435,520 × 48 pixels kept a core busy for
    minutes.
    """
    if len(data) < _JBIG.size:
        raise ImageError("truncated JBIG: its header is 20 bytes")
    first, last, planes, _, width, height, lines, *_ = _JBIG.unpack_from(data)
    if not (first <= last <= _JBIG_LAYERS and 1 <= planes <= 16 and lines):
        raise ImageError("damaged JBIG: its header makes no sense")
    check_size(width, height, max_pixels=max(1, max_pixels // planes))


def check_webp(data: bytes, *, max_pixels: int) -> None:
    """Raise ImageError, before a decoder allocates two canvases, if a WebP header (RFC 9649) states too many pixels."""
    kind, body = data[12:16], data[20:30]
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(body) < 10:
        return
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(body[at : at + 3], "little") for at in (4, 7))
    elif kind == b"VP8L":
        width, height = (1 + (int.from_bytes(body[1:5], "little") >> shift & 0x3FFF) for shift in (0, 14))
    elif kind == b"VP8 ":
        width, height = (int.from_bytes(body[at : at + 2], "little") & 0x3FFF for at in (6, 8))
    else:
        return
    check_size(width, height, max_pixels=max_pixels)


def check_jpeg_xl(data: bytes, *, max_pixels: int) -> None:
    """Raise ImageError, before the file is decoded, if a JPEG XL header is damaged or states too many pixels."""
    start = _jpeg_xl_codestream(data)
    if len(start) < _JPEG_XL_HEADER or not start.startswith(b"\xff\x0a"):
        raise ImageError("damaged or truncated JPEG XL: its header cannot be read")
    bits = int.from_bytes(start[2:], "little")

    def take(count: int) -> int:
        nonlocal bits
        value, bits = bits & (1 << count) - 1, bits >> count
        return value

    def take_side() -> int:
        return 8 * (take(5) + 1) if small else take((9, 13, 18, 30)[take(2)]) + 1

    small = take(1)
    height, ratio = take_side(), take(3)
    across, down = _JPEG_XL_RATIOS[ratio]
    check_size(height * across // down if ratio else take_side(), height, max_pixels=max_pixels)


def _jpeg_xl_codestream(data: bytes) -> bytes:
    """Return the first bytes of a JPEG XL codestream, which is the whole file or lies in boxes of ISO/IEC 14496-12."""
    if not data.startswith(b"\0\0\0\x0cJXL "):
        return data[:_JPEG_XL_HEADER]
    found, position = b"", 0
    while len(found) < _JPEG_XL_HEADER and position + 16 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, position)
        header = 8
        if length == 1:
            (length,), header = struct.unpack_from(">Q", data, position + 8), 16
        end = position + length if length else len(data)
        # A jxlc box holds the whole codestream; a jxlp box holds a 4-byte index and a part of the codestream, which may
        # end within the header.
        if kind in (b"jxlc", b"jxlp"):
            start = position + header + 4 * (kind == b"jxlp")
            found += data[start : min(end, start + _JPEG_XL_HEADER)]
        position = max(end, position + header)
    return found
