"""Decoding of any JPEG to RGB, without the GIL, at full size or at 1/2, 1/4 or 1/8.

picstore's decoder decodes training JPEGs. Pillow's libjpeg-turbo decodes all other JPEGs: progressive,
arithmetic-coded, CMYK, or with several scans. Both decoders return the same pixels. CMYK is converted as Pillow does.
"""

from __future__ import annotations

import io

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.decoder.decode_baseline import NotTrainingJpeg, decode, frame_size
from picstore.jpeg.markers import parse_header
from picstore.jpeg.tiles import MAX_PIXELS_A_BYTE

# Largest number of scans (bytes FF DA, even in a comment) of a JPEG to decode; progressive JPEGs have about ten.
_MAX_SCANS = 100


def decode_rgb(
    jpeg: bytes | memoryview | U8, *, width: int, height: int, factor: int = 1, buffer: U8 | None = None
) -> U8:
    """Decode a JPEG to RGB; grey images get three equal channels.

    Args:
        jpeg: bytes of one whole JPEG.
        width, height: size in pixels, from a container's index or the JPEG's headers.
        factor: divisor of the sides, 1, 2, 4 or 8, at most the shorter side.
        buffer: contiguous one-dimensional uint8 array to decode into, at least as long as the result; by default, a new
            array.

    Returns:
        uint8 (⌈height / factor⌉, ⌈width / factor⌉, 3), which may lie in ``buffer``.

    Raises:
        ImageError: the JPEG is damaged or of another size.
    """
    try:
        pixels = decode(jpeg, buffer, factor=factor)
    except NotTrainingJpeg:
        check_stream(jpeg, width=width, height=height)
        pixels = _decode_by_pillow(jpeg, factor)
    shape = -(-height // factor), -(-width // factor)
    if pixels.shape != (*shape, 3):
        raise ImageError(f"decodes to {pixels.shape[1]} × {pixels.shape[0]} pixels instead of {shape[1]} × {shape[0]}")
    return pixels


def check_stream(jpeg: bytes | memoryview | U8, *, width: int, height: int) -> None:
    """Check that another library's decoder, which trusts headers, would do no more work than the bytes justify.

    Args:
        jpeg: bytes of one whole JPEG, or of a cut.
        width, height: size in pixels, from the container's index.

    Raises:
        ImageError: the headers are damaged, have another size, or claim more pixels than the bytes can hold; or there
            are more than 100 scans, each of which may take as long as decoding the whole image.
    """
    # A training JPEG needs no other test: this one takes 13 µs, without the GIL, and the tests below 20 µs.
    if frame_size(jpeg) == (width, height):
        return
    data = bytes(jpeg)
    try:
        header = parse_header(data)
    except ImageError as error:
        raise ImageError(f"does not decode: {error}") from error
    if (header.width, header.height) != (width, height):
        raise ImageError(f"is of {header.width} × {header.height} pixels by its headers, not {width} × {height}")
    if width * height > MAX_PIXELS_A_BYTE * len(data):
        raise ImageError(f"claims {width} × {height} pixels, more than {len(data):,} bytes hold")
    if data.count(b"\xff\xda") > _MAX_SCANS:
        raise ImageError(f"has more than {_MAX_SCANS} scans")


def _decode_by_pillow(jpeg: bytes | memoryview | U8, factor: int) -> U8:
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        image = JpegImageFile(io.BytesIO(bytes(jpeg)))
        if factor > 1:
            # Pillow reduces by the largest power of 2 up to side / requested side. This request makes it ``factor``.
            image.draft(None, (image.width // factor, image.height // factor))
        return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, ZeroDivisionError) as error:
        raise ImageError(f"does not decode: {error}") from error
