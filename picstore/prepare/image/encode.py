"""Encoding of pixels to a training JPEG (docs/design.md, "Training JPEG")."""

from __future__ import annotations

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.encoder.encode_baseline import encode_strips
from picstore.jpeg.transcode import TranscodedJpeg
from picstore.prepare.image.decode_image import Decoded, decode_bounded, decode_file, decode_image, foreign_errors
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.mozjpeg import encode_by_mozjpeg
from picstore.prepare.image.strips import iterate_strips, size_of


def decode_any(
    source: bytes | Image.Image | U8, *, settings: EncodeSettings, name: str = "", bounded: bool = False
) -> Decoded:
    """Decode any source to upright pixels in grey or RGB, of the size that ``settings.resize`` asks for.

    Args:
        source: a file's bytes in any format that docs/formats.md lists; or a PIL image; or a uint8 array of shape
            (H, W), (H, W, 1), (H, W, 3) or, with alpha, (H, W, 4).
        settings: ``resize``, ``background`` and ``max_pixels`` are used.
        name: the file's name; its extension identifies formats without a magic number.
        bounded: decode a file as :func:`picstore.prepare.image.decode_image.decode_bounded` does.

    Raises:
        ImageError: the source is no image, is damaged, too large, or of a kind that cannot be read.
    """
    if isinstance(source, np.ndarray):
        return decode_image(_from_array(source), origin="array", settings=settings)
    if isinstance(source, Image.Image):
        return decode_image(source, origin="PIL image", settings=settings)
    return (decode_bounded if bounded else decode_file)(source, settings=settings, name=name)


def encode(image: Image.Image | U8, *, settings: EncodeSettings, origin: str = "image") -> TranscodedJpeg:
    """Encode a training JPEG: baseline, a DRI of one tile, JFIF, and no other metadata.

    The image is in mode "L" or "RGB", or RGB as uint8 (height, width, 3); ``origin`` is the kind of its source, for
    messages. Restart markers stand at every ``jpeg.tiles.restart_interval``; Huffman tables are optimal. ImageError if
    the image cannot be encoded.
    """
    with foreign_errors(f"cannot encode {origin}"):
        if settings.encoder == "mozjpeg":
            picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
            return encode_by_mozjpeg(picture, quality=settings.quality, subsampling=settings.subsampling)
        return encode_strips(
            iterate_strips(image), size=size_of(image), quality=settings.quality, subsampling=settings.subsampling
        )


def _from_array(array: U8) -> Image.Image:
    shape = array.shape
    if array.dtype != np.uint8:
        raise ImageError(f"array of dtype {array.dtype}; images are uint8")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)) or 0 in shape:
        raise ImageError(f"array of shape {shape}; images are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if len(shape) == 3 and shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(array)
