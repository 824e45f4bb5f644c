"""Limits on the size of an image, checked in its header before memory is allocated or pixels decoded."""

from __future__ import annotations

import contextlib
import struct
import warnings
from collections.abc import Iterator

from PIL import Image

from picstore.errors import ImageError

# ISO/IEC 11544, 6.2: first and last layer, planes, a filler, width, height, lines a stripe, largest shifts, options.
_JBIG = struct.Struct(">BBBBIIIBBBB")
_JBIG_LAYERS = 31  # with more, a dot of the lowest layer is more than 2**31 dots of the highest


def check_size(width: int, height: int, *, max_pixels: int) -> None:
    """Raise ImageError if a header states a side below 1, or more than ``max_pixels``."""
    if width < 1 or height < 1:
        raise ImageError(f"an image of {width} × {height} pixels")
    if width * height > max_pixels:
        raise ImageError(
            f"{width} × {height} = {width * height:,} pixels; more than --max-pixels allows ({max_pixels:,})"
        )


@contextlib.contextmanager
def pillow_limits(max_pixels: int) -> Iterator[None]:
    """Raise Pillow's limit on pixels to ours, and silence its warnings (odd EXIF, odd tags, large images).

    Ours is checked first; Pillow's applies to images inside images, such as the PNG in an icon. It is only ever raised,
    so that threads with different limits do not disturb each other.
    """
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def check_jbig(data: bytes, *, max_pixels: int) -> None:
    """Raise ImageError if a JBIG header is damaged or states too many pixels; ImageMagick decodes before it checks.

    A file of 239 bytes that claimed 268,435,520 × 48 pixels kept a core busy for minutes. In 60 s of flipping bits all
    files that did so claimed too many pixels.
    """
    if len(data) < _JBIG.size:
        raise ImageError("truncated JBIG: its header is 20 bytes")
    first, last, planes, _, width, height, lines, *_ = _JBIG.unpack_from(data)
    if not (first <= last <= _JBIG_LAYERS and 1 <= planes <= 16 and lines):
        raise ImageError("damaged JBIG: its header makes no sense")
    check_size(width, height, max_pixels=max(1, max_pixels // planes))
