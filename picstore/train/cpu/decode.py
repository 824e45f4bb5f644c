"""Decoding of one image: of a JPEG into memory of its thread, which is used again, and of a file of any format."""

from __future__ import annotations

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg import rgb
from picstore.train.batching.gather import BatchRecords
from picstore.train.buffers import PIXELS
from picstore.train.cpu.cut import Stream


def decode_rgb(jpeg: bytes | memoryview | U8, *, width: int, height: int, factor: int = 1) -> U8:
    """Decode as :func:`picstore.jpeg.rgb.decode_rgb` does; the result is valid until this thread decodes again."""
    buffer = PIXELS.at_least(-(-width // factor) * -(-height // factor) * 3)
    return rgb.decode_rgb(jpeg, width=width, height=height, factor=factor, buffer=buffer)


def decode_slot(records: BatchRecords, slot: int, stream: Stream, *, factor: int) -> U8:
    """Decode what was cut for a slot; a foreign file, which is never cut, at its full size."""
    if records.foreign[slot]:
        name, _ = records.address(slot)
        return _decode_foreign(stream.jpeg, width=stream.width, height=stream.height, name=name)
    return decode_rgb(stream.jpeg, width=stream.width, height=stream.height, factor=factor)


def _decode_foreign(data: memoryview | U8, *, width: int, height: int, name: str) -> U8:
    """Decode a file of any format to upright RGB, as ``picstore convert`` does; ImageError if it has another size.

    Args:
        name: of the file; its extension identifies formats without a magic number.
    """
    from PIL import Image  # few data sets need these, and they take 0.1 s

    from picstore.prepare.image.read import decode_file
    from picstore.prepare.image.settings import EncodeSettings

    try:
        image = decode_file(bytes(data), settings=EncodeSettings(max_pixels=width * height), name=name).image
    except ImageError as error:
        raise ImageError(f"does not decode: {error}") from error
    pixels: U8 = np.array(image.convert("RGB") if isinstance(image, Image.Image) else image)
    if pixels.shape != (height, width, 3):
        text = f"{pixels.shape[1]} × {pixels.shape[0]} pixels instead of {width} × {height}"
        raise ImageError(f"decodes to {text}")
    return pixels
