"""Decoding of one training JPEG on the CPU, without the GIL, by picstore's decoder or libjpeg-turbo.

libjpeg-turbo (by simplejpeg, or else by torchvision) takes streams that picstore's decoder refuses, and decodes at a
reduced scale. All give the same pixels.
"""

from __future__ import annotations

import contextlib

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.decoder.decode import decode
from picstore.train.buffers import PIXELS

try:
    import simplejpeg
except ImportError:  # no wheel for this machine; torchvision decodes at full size only
    simplejpeg = None

SCALES = simplejpeg is not None  # whether images can be decoded at a reduced scale


def decode_rgb(jpeg: bytes | memoryview | U8, *, width: int, height: int, factor: int = 1) -> U8:
    """Decode to RGB; grey images get three equal channels.

    Args:
        jpeg: one whole stream.
        width, height: its size in pixels, as the index says.
        factor: 1, 2, 4 or 8 (1 without SCALES), by which the sides are divided; skips that part of the inverse DCT.

    Returns:
        uint8 (⌈height / factor⌉, ⌈width / factor⌉, 3), valid until this thread decodes again.

    Raises:
        ImageError: the stream is damaged or of another size.
    """
    small_width, small_height = -(-width // factor), -(-height // factor)
    buffer = PIXELS.at_least(small_width * small_height * 3)
    pixels: U8 | None = None
    if factor == 1:
        with contextlib.suppress(ImageError):
            pixels = decode(jpeg, buffer)
    if pixels is None:
        if simplejpeg is None:
            return _decode_by_torchvision(jpeg, width=width, height=height)
        try:
            # simplejpeg picks the smallest of libjpeg's scales that gives at least this size: 1 / factor.
            least = {"min_width": small_width, "min_height": small_height} if factor > 1 else {}
            pixels = simplejpeg.decode_jpeg(jpeg, "RGB", buffer=buffer, **least)
        except ValueError as error:
            raise ImageError(f"does not decode: {error}") from error
    if pixels.shape != (small_height, small_width, 3):
        raise ImageError(
            f"decodes to {pixels.shape[1]} × {pixels.shape[0]} pixels instead of {small_width} × {small_height}"
        )
    return pixels


def _decode_by_torchvision(jpeg: bytes | memoryview | U8, *, width: int, height: int) -> U8:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        image = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError as error:
        raise ImageError(f"does not decode: {error}") from error
    if tuple(image.shape) != (3, height, width):
        raise ImageError(f"decodes to {image.shape[2]} × {image.shape[1]} pixels instead of {width} × {height}")
    pixels: U8 = image.permute(1, 2, 0).contiguous().numpy()
    return pixels
