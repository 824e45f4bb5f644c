"""Decoding of one training JPEG into memory of its thread, which is used again."""

from __future__ import annotations

from picstore.arrays import U8
from picstore.jpeg import rgb
from picstore.train.buffers import PIXELS


def decode_rgb(jpeg: bytes | memoryview | U8, *, width: int, height: int, factor: int = 1) -> U8:
    """Decode as :func:`picstore.jpeg.rgb.decode_rgb` does; the result is valid until this thread decodes again."""
    buffer = PIXELS.at_least(-(-width // factor) * -(-height // factor) * 3)
    return rgb.decode_rgb(jpeg, width=width, height=height, factor=factor, buffer=buffer)
