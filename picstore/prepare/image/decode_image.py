"""Decoding of an image file in this process, to upright pixels in grey or RGB (rules in docs/formats.md).

picstore's decoder reads most JPEGs, to Pillow's pixels in half its time; ``format_decoders`` opens all other files.
Whatever a file holds, the outcome is an image or an ImageError.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.decoder.decode_baseline import decode as decode_baseline
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import header_from_segments, iterate_marker_segments
from picstore.prepare.engine import library_errors
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.exif_orientation import (
    TO_UPRIGHT,
    CoordinateMap,
    read_orientation,
    settle_orientation,
    upright_size,
)
from picstore.prepare.image.format_decoders import open_image
from picstore.prepare.image.libvips import FaultFound, open_large_image
from picstore.prepare.image.mend_files import leave_out_metadata, mend_data, mend_image
from picstore.prepare.image.pixel_conversion import join_strips, resize, to_rgb_or_grey
from picstore.prepare.image.size_limits import check_size
from picstore.prepare.image.tiff_layout import read_layout, read_tags

# Largest number of pixels of a JPEG for picstore's decoder, which takes 12 bytes per pixel; Pillow decodes larger ones.
_MAX_OWN_PIXELS = 1 << 24


@dataclass(frozen=True, slots=True)
class Decoded:
    """Image that is decoded, rotated upright and resized, ready to be encoded as a training JPEG.

    Attributes:
        image: PIL image of mode "L" or "RGB", or RGB as uint8 (height, width, 3).
        origin: reason for re-encoding: "resize", or the kind of the source, such as "PNG" or "progressive JPEG".
        coordinates: map from the source's pixels to the pixels of ``image``.
    """

    image: Image.Image | U8
    origin: str
    coordinates: CoordinateMap

    def rgb(self) -> U8:
        """Return the pixels as uint8 (height, width, 3); a grey image gets three equal channels."""
        image = self.image
        return np.array(image.convert("RGB") if isinstance(image, Image.Image) else image)


def decode_here(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode the first frame of an image file in this process.

    Call this function only in a process that may be lost, because some decoders hang or crash. Arguments are those of
    ``decoder_process.decode_any``.
    """
    if not data:
        raise ImageError("empty file")
    library_errors.take_first_line()  # Discard stderr lines that libraries wrote about the previous image.
    if (decoded := _decode_upright_jpeg(data, settings)) is not None:
        return decoded
    bare = leave_out_metadata(data)
    data, remark = mend_data(bare.data), f"; {bare.remark}" if bare.remark else ""
    if (decoded := _decode_large(data, settings)) is not None:
        return replace(decoded, origin=decoded.origin + remark)
    if library_errors.is_captured():
        # Raise Pillow's limit on pixels, which also applies to images inside images. As the limit is global, only
        # picstore's own processes change it.
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS or 0, settings.max_pixels)
    image = open_image(data, name=name, max_pixels=settings.max_pixels)
    kind = image.format or "image"
    with foreign_errors(f"damaged {kind}"):
        # Check the full size that the header states, although a JPEG may be decoded at a fraction of this size below.
        check_size(*image.size, max_pixels=settings.max_pixels)
        if kind in ("JPEG", "MPO"):
            return _decode_jpeg_by_pillow(image, bare.orientation, settings)
        decoded = decode_opened(mend_image(image), origin=kind + remark, settings=settings)
    return replace(decoded, origin=decoded.origin + _reduced_bits(kind, data))


def _reduced_bits(kind: str, data: bytes) -> str:
    bits = data[24] if kind == "PNG" else 8
    if kind == "TIFF":
        with contextlib.suppress(Exception):  # Some TIFFs that Pillow reads have tags that ``read_layout`` rejects.
            bits = read_layout(read_tags(data), "<" if data.startswith(b"II") else ">").bits
    return f"; {bits} bits reduced to 8" if bits > 8 else ""


def _decode_upright_jpeg(data: bytes, settings: EncodeSettings) -> Decoded | None:
    """Decode an upright JPEG by picstore's decoder; return None if Pillow has to decode it.

    Pillow decodes damaged JPEGs, because it reports the damage, and JPEGs to be resized to a quarter or less, because
    it decodes at a fraction of the size.
    """
    try:
        segments = tuple(iterate_marker_segments(data))
        header = header_from_segments(segments)
        size = header.width, header.height
        if len(header.components) != 3 or size[0] * size[1] > min(_MAX_OWN_PIXELS, settings.max_pixels):
            return None
        target = size if settings.resize is None else settings.resize.target(*size)
        if min(size[0] // target[0], size[1] // target[1]) >= 4 or read_coding_parameters(segments).orientation != 1:
            return None
        pixels = decode_baseline(data)
    except ImageError:
        return None
    origin = "JPEG" if target == size else "resize"
    return resize_upright(pixels, CoordinateMap(1, size, size), origin=origin, settings=settings)


def _decode_large(data: bytes, settings: EncodeSettings) -> Decoded | None:
    """Decode and resize a large TIFF or PNG by libvips, in 3 instead of 7 bytes per pixel; None for other images."""
    large = None if settings.resize is None else open_large_image(data, settings=settings)
    if large is None:
        return None
    try:
        pixels = join_strips(large.strips, height=large.size[1])
    except FaultFound:
        return None
    # ``resize_upright`` takes grey images only as PIL images.
    image = Image.fromarray(pixels) if pixels.ndim == 2 else pixels
    return resize_upright(image, CoordinateMap(1, large.size, large.size), origin=large.origin, settings=settings)


def _decode_jpeg_by_pillow(image: Image.Image, orientation: int | None, settings: EncodeSettings) -> Decoded:
    settle_orientation(image, orientation)
    if max(image.size) > MAX_SIDE:
        width, height = image.size
        raise ImageError(f"JPEG of {width} × {height} pixels; libjpeg decodes up to {MAX_SIDE:,} a side")
    turned = read_orientation(image)
    size = upright_size(image)
    target = size if settings.resize is None else settings.resize.target(*size)
    if image.mode == "CMYK":
        origin = "CMYK JPEG"
    elif image.info.get("progressive"):
        origin = "progressive JPEG"
    elif turned != 1:
        origin = "rotated by EXIF"
    else:
        origin = "JPEG" if target == size else "resize"
    if settings.resize is not None:
        # Let libjpeg decode at 1/2, 1/4 or 1/8 of the size, but at no less than twice the target size, because the
        # resampling filter needs that many pixels.
        twice = 2 * target[0], 2 * target[1]
        image.draft(None, twice[::-1] if turned >= 5 else twice)
    return decode_opened(image, origin=origin, settings=settings, size=size)


def decode_opened(
    image: Image.Image, *, origin: str, settings: EncodeSettings, size: tuple[int, int] | None = None
) -> Decoded:
    """Decode an opened image: load it, rotate it upright, convert it to "L" or "RGB", and resize it.

    The given image, of any mode, is not changed. For a JPEG opened at a fraction of its size, ``size`` is the full
    upright width and height, from which the target size is computed. Raise ImageError if the image is damaged or too
    large.
    """
    with foreign_errors(f"damaged {origin}"):
        tiff_orientation = read_orientation(image) if image.format == "TIFF" else 1
        image.load()
        # Check the size again after load(): an icon's header and the PNG inside it may state different sizes.
        check_size(*image.size, max_pixels=settings.max_pixels)
        # Read the orientation only now, because load() has rotated a TIFF and reset its orientation.
        orientation = read_orientation(image)
        image = to_rgb_or_grey(image, background=settings.background)
        if orientation in TO_UPRIGHT:
            image = image.transpose(TO_UPRIGHT[orientation])
        whole = size or image.size
        coordinates = CoordinateMap(max(orientation, tiff_orientation), whole, whole)
        return resize_upright(image, coordinates, origin=origin, settings=settings)


def resize_upright(
    image: Image.Image | U8, coordinates: CoordinateMap, *, origin: str, settings: EncodeSettings
) -> Decoded:
    """Resize an upright image (PIL image in "L" or "RGB", or RGB array) to the size that the settings ask for."""
    size = coordinates.upright_size
    target = size if settings.resize is None else settings.resize.target(*size)
    if not (1 <= target[0] <= MAX_SIDE and 1 <= target[1] <= MAX_SIDE):
        raise ImageError(f"{target[0]} × {target[1]} pixels; a JPEG has 1 to {MAX_SIDE:,} a side: use --resize")
    return Decoded(resize(image, target), origin, replace(coordinates, stored_size=target))
