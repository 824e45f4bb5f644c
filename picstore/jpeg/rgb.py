"""Decoding of any JPEG to RGB, without the GIL, by picstore's decoder or libjpeg-turbo.

libjpeg-turbo (by simplejpeg, or else by Pillow) takes streams that picstore's decoder refuses, and decodes at a reduced
scale. All give the same pixels; of CMYK those of Pillow are a level lower.
"""

from __future__ import annotations

import contextlib
import io

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.check_stream import check_stream
from picstore.jpeg.decoder.decode import decode

try:
    import simplejpeg
except ImportError:  # no wheel for this machine; Pillow decodes at full size only
    simplejpeg = None

SCALES = simplejpeg is not None  # whether images can be decoded at a reduced scale


def decode_rgb(
    jpeg: bytes | memoryview | U8, *, width: int, height: int, factor: int = 1, buffer: U8 | None = None
) -> U8:
    """Decode to RGB; grey images get three equal channels.

    Args:
        jpeg: one whole stream.
        width, height: its size in pixels, as an index or its headers say.
        factor: 1, 2, 4 or 8 (1 without SCALES), by which the sides are divided; skips that part of the inverse DCT.
        buffer: contiguous uint8 of one dimension, at least as long as the pixels; a new one by default.

    Returns:
        uint8 (⌈height / factor⌉, ⌈width / factor⌉, 3), of which ``buffer`` may be the memory.

    Raises:
        ImageError: the stream is damaged or of another size.
    """
    small_width, small_height = -(-width // factor), -(-height // factor)
    pixels: U8 | None = None
    if factor == 1:
        with contextlib.suppress(ImageError):
            pixels = decode(jpeg, buffer)
    if pixels is None:
        check_stream(jpeg, width=width, height=height)
        pixels = _decode_by_libjpeg(jpeg, small_width, small_height, scaled=factor > 1, buffer=buffer)
    if pixels.shape != (small_height, small_width, 3):
        raise ImageError(
            f"decodes to {pixels.shape[1]} × {pixels.shape[0]} pixels instead of {small_width} × {small_height}"
        )
    return pixels


def _decode_by_libjpeg(
    jpeg: bytes | memoryview | U8, width: int, height: int, *, scaled: bool, buffer: U8 | None
) -> U8:
    if simplejpeg is None:
        return _decode_by_pillow(jpeg)
    # simplejpeg picks the smallest of libjpeg's scales that gives at least this size: 1 / factor.
    least = {"min_width": width, "min_height": height} if scaled else {}
    try:
        pixels: U8 = simplejpeg.decode_jpeg(jpeg, "RGB", buffer=buffer, **least)
    except ValueError as error:
        raise ImageError(f"does not decode: {error}") from error
    return pixels


def _decode_by_pillow(jpeg: bytes | memoryview | U8) -> U8:
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        return np.asarray(JpegImageFile(io.BytesIO(bytes(jpeg))).convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise ImageError(f"does not decode: {error}") from error
