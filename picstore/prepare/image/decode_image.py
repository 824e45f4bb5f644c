"""Decoding of image files to upright pixels in grey or RGB (rules in docs/formats.md).

picstore's decoder reads most JPEGs, to Pillow's pixels in half its time; Pillow reads all else that it can, the extra
``formats`` HEIC, JPEG XL, raw files and SVG, and ImageMagick the rest. Whatever a file holds, the outcome is an image
or an ImageError.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.decoder.decode_baseline import decode as decode_baseline
from picstore.jpeg.headers import find_orientation, read_coding_parameters
from picstore.jpeg.markers import header_from_segments, iterate_marker_segments
from picstore.prepare.engine import stderr_capture
from picstore.prepare.image import decoder_process, fits, format_decoders, imagemagick, svg, tiff
from picstore.prepare.image.encode_settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.libvips import FaultFound, open_large_image
from picstore.prepare.image.mend_files import leave_out_metadata
from picstore.prepare.image.misread import is_misread_by_pillow, mend_data, mend_image, refuse_misread
from picstore.prepare.image.pixel_conversion import to_rgb_or_grey
from picstore.prepare.image.resize import resize
from picstore.prepare.image.size_limits import check_size, check_webp, open_by_pillow
from picstore.prepare.image.strips import join_strips

# EPS would start Ghostscript. The plugin of JXL decodes before it tells the size, so format_decoders calls it. Pillow
# decodes no picture of the others, or passes it to a system library.
EXCLUDED_FROM_PILLOW = frozenset({"EPS", "JXL", "BUFR", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})

# What Pillow decodes without giving Python's lock back, for 6 s at 64 million pixels; or in Python, for 170 s.
_HOLDS_LOCK = frozenset({"JPEG2000", "QOI"})

_ORIENTATION = 0x0112
# Pillow's operation that makes an image upright, by EXIF orientation (EXIF 2.32, 4.6.4.A).
TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_MAX_OWN_PIXELS = 1 << 24  # our decoder's memory, 12 bytes a pixel, stays with the process
_TIFF_SUBFILE_TYPE, _TIFF_SUB_IFDS, _DNG_VERSION = 254, 330, 50706


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image that is ready to be encoded.

    Attributes:
        image: mode "L" or "RGB", or RGB as uint8 (height, width, 3); upright, of the size that the settings ask for.
        origin: kind of the source, in a few words, which is the reason to re-encode it: "PNG", "progressive JPEG",
            "resize", …
        coordinates: map from the source's pixels to these.
    """

    image: Image.Image | U8
    origin: str
    coordinates: CoordinateMap

    def rgb(self) -> U8:
        """Return the pixels as uint8 (height, width, 3); grey images get three equal channels."""
        image = self.image
        return np.array(image.convert("RGB") if isinstance(image, Image.Image) else image)


def decode_file(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode the first frame of an image file.

    Arguments as for ``encode.decode_any``. ImageError has a reason of one line. The process that calls this should be
    one that can be ended: formats other than Pillow's may take any time or crash.
    """
    if not data:
        raise ImageError("empty file")
    if svg.is_svg(data) and not decoder_process.is_inside():  # its memory has to be limited
        return decode_apart(data, settings=settings, name=name)
    stderr_capture.take_first_line()  # discards what the previous image left
    if (decoded := _decode_upright_jpeg(data, settings)) is not None:
        return decoded
    bare = leave_out_metadata(data)
    data, remark = mend_data(bare.data), f"; {bare.remark}" if bare.remark else ""
    if (decoded := _decode_large(data, settings)) is not None:
        return replace(decoded, origin=decoded.origin + remark)
    if stderr_capture.is_captured():  # a process of picstore's own, whose limit on images inside images this may set
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS or 0, settings.max_pixels)
    image = _open_image(data, name=name, max_pixels=settings.max_pixels)
    kind = image.format or "image"
    with foreign_errors(f"damaged {kind}"):
        # The size in the header counts, even if DCT scaling below decodes far fewer pixels.
        check_size(*image.size, max_pixels=settings.max_pixels)
        if kind in ("JPEG", "MPO"):
            _settle_orientation(image, bare.orientation)
            if max(image.size) > MAX_SIDE:
                width, height = image.size
                raise ImageError(f"JPEG of {width} × {height} pixels; libjpeg decodes up to {MAX_SIDE:,} a side")
            origin, size = _jpeg_origin(image, settings), _upright_size(image)
            if settings.resize is not None:
                # libjpeg decodes at 1/2, 1/4 or 1/8, to no less than twice the target, for the resampling filter.
                width, height = settings.resize.target(*size)
                twice = 2 * width, 2 * height
                image.draft(None, twice[::-1] if _orientation(image) >= 5 else twice)
            return decode_image(image, origin=origin, settings=settings, size=size)
        return decode_image(mend_image(image), origin=kind + remark, settings=settings)


def decode_bounded(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode as :func:`decode_file`, in a program that must neither hang nor crash.

    Pillow's formats are decoded here, within ``max_pixels``; all others in a decoder process.
    """
    try:
        bare = leave_out_metadata(data).data
        image = open_by_pillow(bare, [each for each in _pillow_formats() if each not in _HOLDS_LOCK])
        # Beyond Pillow's own limit, images inside images have to be bounded by another process's.
        check_size(*image.size, max_pixels=min(settings.max_pixels, Image.MAX_IMAGE_PIXELS or settings.max_pixels))
        here = not is_misread_by_pillow(bare) and not (
            data.startswith(tiff.STARTS) and _is_camera_raw(tiff.read_tags(data), data)
        )
    except Exception:  # the decoder process says what is wrong with it
        here = False
    return (decode_file if here else decode_apart)(data, settings=settings, name=name)


def decode_apart(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode as :func:`decode_file`, in a decoder process."""
    if not data:
        raise ImageError("empty file")
    image, origin, coordinates = decoder_process.decode(data, settings=settings, name=name)
    return _resize_upright(image, coordinates, origin=origin, settings=settings)


def _decode_upright_jpeg(data: bytes, settings: EncodeSettings) -> Decoded | None:
    """Decode an upright JPEG by picstore's decoder; None for files that Pillow has to decode.

    The decoder takes half of Pillow's time, and Pillow needs 0.2 ms to read headers. Pillow decodes JPEGs at a fraction
    of their size, and reports all damage.
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
    return _resize_upright(pixels, CoordinateMap(1, size, size), origin=origin, settings=settings)


def _decode_large(data: bytes, settings: EncodeSettings) -> Decoded | None:
    """Decode a large image that is to be resized; three bytes a pixel, where Pillow and NumPy take seven."""
    large = None if settings.resize is None else open_large_image(data, settings=settings)
    if large is None:
        return None
    try:
        pixels = join_strips(large.strips, height=large.size[1])
    except FaultFound:
        return None
    image = Image.fromarray(pixels) if pixels.ndim == 2 else pixels  # the kernel that resizes takes three channels
    return _resize_upright(image, CoordinateMap(1, large.size, large.size), origin=large.origin, settings=settings)


def decode_image(
    image: Image.Image, *, origin: str, settings: EncodeSettings, size: tuple[int, int] | None = None
) -> Decoded:
    """Decode an opened image: load it, rotate it upright, convert it to "L" or "RGB", and resize it.

    The image, of any mode, is not changed. ``size`` is the upright width and height from which the target is computed,
    for a JPEG that is decoded at a fraction of them. ImageError if the image is damaged or too large.
    """
    with foreign_errors(f"damaged {origin}"):
        tiff_orientation = _orientation(image) if image.format == "TIFF" else 1
        image.load()
        check_size(*image.size, max_pixels=settings.max_pixels)  # an icon's header and its PNG may disagree
        orientation = _orientation(image)  # read after load(), which rotates a TIFF and resets its orientation
        image = to_rgb_or_grey(image, background=settings.background)
        if orientation in TO_UPRIGHT:
            image = image.transpose(TO_UPRIGHT[orientation])
        upright_size = size or image.size
        coordinates = CoordinateMap(max(orientation, tiff_orientation), upright_size, upright_size)
        return _resize_upright(image, coordinates, origin=origin, settings=settings)


def _resize_upright(
    image: Image.Image | U8, coordinates: CoordinateMap, *, origin: str, settings: EncodeSettings
) -> Decoded:
    """Resize an upright image, in "L" or "RGB" or as an array of RGB, as the settings ask for."""
    size = coordinates.upright_size
    target = size if settings.resize is None else settings.resize.target(*size)
    if not (1 <= target[0] <= MAX_SIDE and 1 <= target[1] <= MAX_SIDE):
        raise ImageError(f"{target[0]} × {target[1]} pixels; a JPEG has 1 to {MAX_SIDE:,} a side: use --resize")
    return Decoded(resize(image, target), origin, replace(coordinates, stored_size=target))


@contextlib.contextmanager
def foreign_errors(context: str) -> Iterator[None]:
    """Translate any exception of an image library into an ImageError with a short reason and its cause.

    For a damaged TIFF Pillow says "decoder error -2" and libtiff prints the cause on stderr: both go into the reason.
    All types are caught, as hostile files raise many: OSError, SyntaxError, struct.error, KeyError, zlib.error, ….
    """
    try:
        yield
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(f"{context}: not enough memory") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        if printed := stderr_capture.take_first_line():
            reason = f"{reason} ({printed.rstrip('.')})"
        if isinstance(error, EOFError) or "truncated" in reason.lower() or "not enough" in reason.lower():
            context = context.replace("damaged ", "truncated ", 1)
        raise ImageError(f"{context}: {reason}") from error


def _open_image(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    check_webp(data, max_pixels=max_pixels)
    if data.startswith(tiff.STARTS):
        return _open_tiff(data, name=name, max_pixels=max_pixels)
    if data.startswith(fits.START):
        with foreign_errors("damaged FITS"):
            return fits.read_image(data, max_pixels=max_pixels)
    if is_misread_by_pillow(data):
        return _open_elsewhere(data, name=name, max_pixels=max_pixels)
    formats = _pillow_formats()
    try:
        return open_by_pillow(data, formats)
    except Image.DecompressionBombError as error:
        raise ImageError(f"more pixels than --max-pixels allows ({max_pixels:,})") from error
    except Exception as error:
        if imagemagick.find_coder(data, name=name) is None:
            raise ImageError(_unidentified(data, formats, error)) from error
    return _open_elsewhere(data, name=name, max_pixels=max_pixels)


def _open_tiff(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Open a TIFF by its tags, or develop a camera's raw file, of which Pillow reads only the thumbnail."""
    raw_by_name = imagemagick.find_coder(data, name=name) == "dng"
    with foreign_errors("damaged TIFF"):
        if _is_camera_raw(tiff.read_tags(data), data):
            if not raw_by_name:
                raise ImageError("raw file of a camera, whose name does not end in that camera's extension")
            return _open_elsewhere(data, name=name, max_pixels=max_pixels)
        try:
            image = tiff.decode_layout(data, max_pixels=max_pixels)
            return image or TiffImagePlugin.TiffImageFile(io.BytesIO(data))
        except Exception:
            if not raw_by_name:
                raise
    return _open_elsewhere(data, name=name, max_pixels=max_pixels)


def _open_elsewhere(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Read an image by a wheel of the extra ``formats``, or by ImageMagick."""
    coder = imagemagick.find_coder(data, name=name) or ""
    refuse_misread(data, coder)
    if coder == "svg":
        return svg.draw(data, max_pixels=max_pixels)
    with foreign_errors(f"damaged {coder.upper()}"):
        by_wheel = format_decoders.read_image(data, coder=coder, max_pixels=max_pixels)
    return by_wheel or imagemagick.read_image(data, name=name, max_pixels=max_pixels)


def _pillow_formats() -> list[str]:
    Image.init()
    return [each for each in Image.ID if each not in EXCLUDED_FROM_PILLOW]


def _unidentified(data: bytes, formats: list[str], error: Exception) -> str:
    """Explain why Pillow opened nothing: the file is of none of its formats, or its header is damaged."""
    for each in formats:
        accept = Image.OPEN[each][1]
        if accept is not None and accept(data[:16].ljust(16, b"\0")) is True:
            detail = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
            return f"damaged or truncated {each}: its header cannot be read{detail}"
    return "not an image that Pillow or ImageMagick reads"


def _is_camera_raw(tags: Mapping[int, Any], data: bytes) -> bool:
    thumbnail_first = _TIFF_SUB_IFDS in tags and tags.get(_TIFF_SUBFILE_TYPE) == 1
    return _DNG_VERSION in tags or thumbnail_first or data[8:10] == b"CR"


def _orientation(image: Image.Image) -> int:
    """Read the EXIF orientation, 1 … 8, of any integer type; 1 if it is missing or unreadable.

    Of a JPEG, ``_settle_orientation`` has set it. An orientation in XMP is ignored, as most decoders do; a JPEG that is
    kept losslessly must not differ from one that is re-encoded.
    """
    info = dict(image.info)
    for key in ("xmp", "XML:com.adobe.xmp"):
        image.info.pop(key, None)
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # an unreadable EXIF block counts as none; it may raise any type of error
        return 1
    finally:
        image.info = info
    # Pillow gives a tag of the type BYTE as bytes.
    if isinstance(value, bytes) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, int) and value in TO_UPRIGHT else 1


def _settle_orientation(image: Image.Image, orientation: int | None) -> None:
    """Set the orientation of an opened JPEG; None reads it in the segments that Pillow kept."""
    if orientation is None:
        orientation = find_orientation(body for marker, body in getattr(image, "applist", ()) if marker == "APP1")
    with contextlib.suppress(Exception):  # Pillow raises errors of many types on an unreadable EXIF block, once
        image.getexif()
    image.getexif()[_ORIENTATION] = orientation


def _upright_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if _orientation(image) >= 5 else (width, height)


def _jpeg_origin(image: Image.Image, settings: EncodeSettings) -> str:
    if image.mode == "CMYK":
        return "CMYK JPEG"
    if image.info.get("progressive"):
        return "progressive JPEG"
    if _orientation(image) in TO_UPRIGHT:
        return "rotated by EXIF"
    size = _upright_size(image)
    if settings.resize is not None and settings.resize.target(*size) != size:
        return "resize"
    return "JPEG"
