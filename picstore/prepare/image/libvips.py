"""Decoding and encoding by libvips, if pyvips is installed (the extra ``mozjpeg``). No other module imports pyvips.

Large TIFF and PNG are decoded strip by strip: libvips reads sequentially and keeps up to 75 MiB, while Pillow keeps
four bytes per pixel. Only images that need no conversion are read this way: grey or RGB of 8 bits, upright, without
alpha, compressed without loss. Pillow reads all other images, and images in which libvips finds a fault, so that no
result or reason depends on whether pyvips is installed. JPEGs are encoded by mozjpeg, which is built into libvips.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.errors import missing_extra
from picstore.jpeg.transcode import TranscodedJpeg, read_marker_segments, transcode
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.mend_files import iterate_chunks
from picstore.prepare.image.pixel_conversion import strip_boxes
from picstore.prepare.image.size_limits import check_size, open_by_pillow

# Smallest number of pixels of an image to decode by libvips, because importing pyvips and starting libvips takes 0.1 s.
MIN_PIXELS = 1 << 24
# Smallest number of bytes of a file to try by libvips: if libvips cannot take it, its headers are read twice (0.2 ms).
_MIN_BYTES = 1 << 20
_STARTS = b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*"

# Numbers of tags in TIFF 6.0.
_COMPRESSION, _PHOTOMETRIC, _EXTRA_SAMPLES = 259, 262, 338
_TILE_WIDTH, _SUB_IFDS, _DNG_VERSION = 322, 330, 50706
# Lossless compressions: none, LZW, Deflate, PackBits, and Deflate before TIFF 6.0's supplement.
_LOSSLESS = {1, 5, 8, 32773, 32946}
# By number of a TIFF tag, the value with which libvips reads the same samples as Pillow: bits per sample, fill order,
# orientation, planar configuration and sample format.
_USUAL = {258: {8}, 266: {1}, 274: {1}, 284: {1}, 339: {1}}
# libvips decodes a PNG only if all its chunks are of the types in these two sets, because Pillow then reads the same
# pixels. Chunks of the first set may stand anywhere in the file.
_ANYWHERE = {b"IDAT", b"IEND", b"tEXt", b"tIME"}
# The second set: chunks of these types must stand before the first IDAT chunk.
_BEFORE_PIXELS = {b"IHDR", b"sRGB", b"gAMA", b"cHRM", b"pHYs", b"iCCP", b"bKGD", b"sBIT"}

# Value of libvips' option by chroma subsampling: "on" halves chroma in both directions, "off" leaves it at full size.
_SUBSAMPLE_MODES = {"444": "off", "420": "on"}


@functools.cache
def find_vips() -> Any:
    """Import and configure pyvips; return None if pyvips or libvips is not installed."""
    try:
        import pyvips
    except (ImportError, OSError):  # OSError is raised if the library is missing.
        return None
    pyvips.concurrency_set(1)  # One thread, because worker processes use all cores already.
    pyvips.cache_set_max(0)  # Disable the cache of operations, which would keep finished images in memory.
    return pyvips


class FaultFound(Exception):
    """Error for an image that libvips cannot read, or reads with another size or format than Pillow."""


@dataclass(frozen=True, slots=True)
class LargeImage:
    """Large upright TIFF or PNG in grey or RGB, to be decoded strip by strip.

    Attributes:
        strips: iterator of strips for ``encode_strips``; it raises FaultFound if a strip cannot be decoded.
        size: width and height.
        origin: "TIFF" or "PNG".
    """

    strips: Iterator[U8]
    size: tuple[int, int]
    origin: str


def open_large_image(data: bytes, *, settings: EncodeSettings) -> LargeImage | None:
    """Open a TIFF or PNG that libvips can decode strip by strip; return None for any other image."""
    if len(data) < _MIN_BYTES or not data.startswith(_STARTS):
        return None
    try:
        image = open_by_pillow(data, ("TIFF", "PNG"))
        check_size(*image.size, max_pixels=settings.max_pixels)
        plain = image.width * image.height >= MIN_PIXELS and _needs_no_conversion(data, image)
    except Exception:  # Decoding by Pillow will report what is wrong with the header.
        return None
    vips = find_vips() if plain and max(image.size) <= MAX_SIDE else None
    return None if vips is None else LargeImage(_fetch_strips(vips, data, image), image.size, str(image.format))


def _fetch_strips(vips: Any, data: bytes, image: Image.Image) -> Iterator[U8]:
    load = vips.Image.pngload_source if image.format == "PNG" else vips.Image.tiffload_source
    bands = len(image.getbands())
    try:
        # Load from a libvips Source, because loading from a buffer would copy the file's bytes.
        opened = load(vips.Source.new_from_memory(data), access="sequential", fail_on="warning")
        if (opened.width, opened.height, opened.bands, opened.format) != (*image.size, bands, "uchar"):
            raise FaultFound("libvips reads another size or format")
        region = vips.Region.new(opened)
        for left, top, right, bottom in strip_boxes(image.size):
            pixels = np.frombuffer(region.fetch(left, top, right, bottom - top), np.uint8)
            yield pixels.reshape((bottom - top, right, bands) if bands == 3 else (bottom - top, right))
    except vips.Error as error:
        raise FaultFound(str(error)) from error


def _needs_no_conversion(data: bytes, image: Image.Image) -> bool:
    if image.mode not in ("L", "RGB") or image.has_transparency_data:
        return False
    if image.format == "PNG":
        return _is_plain_png(data)
    tags = getattr(image, "tag_v2", {})
    if image.format != "TIFF" or _SUB_IFDS in tags or _DNG_VERSION in tags or data[8:10] == b"CR":
        return False  # The file is not a TIFF, or it may be a camera's raw file.
    plain = all(set(np.ravel(tags.get(tag, min(values))).tolist()) == values for tag, values in _USUAL.items())
    photometric = 2 if image.mode == "RGB" else 1
    kind = tags.get(_COMPRESSION, 1) in _LOSSLESS and tags.get(_PHOTOMETRIC) == photometric
    # Leave uncompressed tiles to Pillow. It reads them by its own code and libvips by libtiff, and the results can
    # differ if tile sizes are damaged.
    raw_tiles = tags.get(_COMPRESSION, 1) == 1 and _TILE_WIDTH in tags
    return plain and kind and not raw_tiles and _EXTRA_SAMPLES not in tags


def _is_plain_png(data: bytes) -> bool:
    """Return whether a PNG has 8 bits, no interlacing, and no chunk that is damaged or changes its pixels."""
    kind, allowed = b"", _ANYWHERE | _BEFORE_PIXELS
    for kind, body, *_ in (chunks := list(iterate_chunks(data))):
        if kind == b"IDAT":
            allowed = _ANYWHERE
        if kind not in allowed:
            return False
        # A text chunk of this name may hold EXIF, whose orientation Pillow would apply.
        if kind == b"tEXt" and bytes(body[:16]) == b"Raw profile type":
            return False
        if kind == b"IHDR" and (len(body) != 13 or body[8] != 8 or body[9] not in (0, 2) or body[12]):
            return False
    return kind == b"IEND" and all(chunk.is_sound() for chunk in chunks)


def encode_by_mozjpeg(image: Image.Image, *, quality: int, subsampling: str) -> TranscodedJpeg:
    """Encode a baseline JPEG by mozjpeg, with trellis quantization, optimal Huffman tables and restart markers.

    The image has the mode "L" or "RGB", ``quality`` is 1 … 100 on libjpeg's scale, ``subsampling`` is "420" or "444".
    Errors are those of :func:`require_mozjpeg`.
    """
    # mozjpeg must not write restart markers: with trellis quantization, they break the stream (mozjpeg issue 195).
    jpeg = _encode(require_mozjpeg(), image, quality=quality, subsampling=subsampling, trellis=True)
    return transcode(jpeg, *read_marker_segments(jpeg))


@functools.cache
def require_mozjpeg() -> Any:
    """Return pyvips; raise MissingDependency unless pyvips and a libvips built with mozjpeg are installed."""
    pyvips = find_vips()
    if pyvips is None:
        raise missing_extra("--encoder mozjpeg needs libvips", "mozjpeg")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8))
    one, other = (_encode(pyvips, noise, quality=50, subsampling="444", trellis=trellis) for trellis in (True, False))
    # If trellis quantization changes nothing, libvips is built with libjpeg-turbo, which ignores the option.
    if one == other:
        raise missing_extra("--encoder mozjpeg needs a libvips that is built with mozjpeg", "mozjpeg")
    return pyvips


def _encode(vips: Any, image: Image.Image, *, quality: int, subsampling: str, trellis: bool) -> bytes:
    bands = len(image.getbands())
    raw = vips.Image.new_from_memory(image.tobytes(), image.width, image.height, bands, "uchar")
    encoded: bytes = raw.copy(interpretation="b-w" if bands == 1 else "srgb").jpegsave_buffer(
        Q=quality,
        optimize_coding=True,
        interlace=False,
        trellis_quant=trellis,
        overshoot_deringing=True,
        # Take T.81's quantization tables (annex K). JPEGs are then 4 % smaller than those of libjpeg-turbo at equal
        # SSIM; with mozjpeg's own tables, they are not smaller.
        quant_table=0,
        subsample_mode=_SUBSAMPLE_MODES[subsampling],
        restart_interval=0,
        keep="none",
    )
    return encoded
