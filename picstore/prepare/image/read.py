"""From the bytes of an image file to upright pixels in grey or RGB; docs/formats.md has the rules.

Our own decoder reads most JPEGs, with Pillow's pixels in half its time, Pillow what else it can, and ImageMagick
(``magick``) the rest. Whatever a file holds, the outcome is an image or an ImageError.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

from PIL import Image, ImageFile, UnidentifiedImageError

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.decoder.decode import decode as decode_baseline
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import header_from_segments, iterate_marker_segments
from picstore.prepare.engine import stderr_capture
from picstore.prepare.image import imagemagick
from picstore.prepare.image.color import to_rgb_or_grey
from picstore.prepare.image.coordinates import Placement
from picstore.prepare.image.resize import resize
from picstore.prepare.image.settings import MAX_SIDE, EncodeSettings
from picstore.prepare.image.size_limits import check_size

__all__ = ["Decoded", "decode", "finish", "foreign_errors", "open_image", "to_rgb_or_grey"]

# EPS would start Ghostscript. The others hold no picture that Pillow decodes, or only hand it to a system library.
_NOT_BY_PILLOW = frozenset({"EPS", "BUFR", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})

_ORIENTATION = 0x0112
_UPRIGHT = {  # EXIF orientation to what makes it 1 (EXIF 2.32, 4.6.4.A)
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_LARGEST_HERE = 1 << 24  # pixels; our decoder's memory, 12 bytes a pixel, stays with the process
_TIFF_SUBFILE_TYPE, _TIFF_SUB_IFDS, _DNG_VERSION = 254, 330, 50706


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image that is ready to be encoded.

    Attributes:
        image: mode "L" or "RGB", upright, of the size that the settings ask for.
        origin: what it was, in a few words: the reason why it is encoded anew.
        placement: where the points of the file's image lie in this one.
    """

    image: Image.Image
    origin: str
    placement: Placement


def open_image(data: bytes, *, settings: EncodeSettings, name: str = "") -> Image.Image:
    """The first frame of an image file: upright, mode "L" or "RGB", of the size that ``settings.resize`` asks for.

    Args:
        data: the whole file, of any format that docs/formats.md lists.
        settings: ``resize``, ``background`` and ``max_pixels`` are used.
        name: the file's name; its extension tells formats apart that have no magic number.

    Raises:
        ImageError: the message is a one-line reason.
    """
    return decode(data, settings=settings, name=name).image


def decode(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """As ``open_image``, with the reason why the file cannot be kept as it is."""
    if not data:
        raise ImageError("empty file")
    stderr_capture.take_first_line()  # of the image before
    plain = _decode_plain(data, settings)
    if plain is not None:
        return plain
    with _pillow(settings.max_pixels):
        image = _open(data, name=name, max_pixels=settings.max_pixels)
        kind = image.format or "image"
        with foreign_errors(f"damaged {kind}"):
            # The size in the header is what is refused; DCT scaling below may decode far fewer pixels.
            check_size(*image.size, max_pixels=settings.max_pixels)
            if kind in ("JPEG", "MPO"):
                origin, size = _jpeg_origin(image, settings), _upright_size(image)
                if settings.resize is not None:
                    _decode_smaller(image, settings.resize.target(*size))
                return finish(image, origin=origin, settings=settings, size=size)
            _scale_transparency(image)
            return finish(image, origin=kind, settings=settings)


def _decode_plain(data: bytes, settings: EncodeSettings) -> Decoded | None:
    """As ``decode``, of an upright JPEG that our own decoder reads and that need not be decoded smaller; else None.

    The decoder takes half of Pillow's time, and Pillow 0.2 ms to read headers. What either finds wrong, Pillow tells.
    """
    try:
        segments = tuple(iterate_marker_segments(data))
        header = header_from_segments(segments)
        size = header.width, header.height
        if len(header.components) != 3 or size[0] * size[1] > min(_LARGEST_HERE, settings.max_pixels):
            return None
        target = size if settings.resize is None else settings.resize.target(*size)
        if min(size[0] // target[0], size[1] // target[1]) >= 4 or read_coding_parameters(segments).orientation != 1:
            return None
        pixels = decode_baseline(data)
    except ImageError:
        return None
    origin = "JPEG" if target == size else "resize"
    return _resized(pixels, Placement(1, size, size), origin=origin, settings=settings)


def finish(
    image: Image.Image, *, origin: str, settings: EncodeSettings, size: tuple[int, int] | None = None
) -> Decoded:
    """Load an image, turn it upright, reduce it to "L" or "RGB" and give it the size asked for.

    Args:
        image: of any mode; it is not changed.
        origin: see ``Decoded``.
        settings: ``resize``, ``background`` and ``max_pixels`` are used.
        size: width and height to compute the target from, where the image is a JPEG that is decoded smaller.

    Raises:
        ImageError: the image is damaged, too large, or would be too large for a JPEG.
    """
    with _pillow(settings.max_pixels), foreign_errors(f"damaged {origin}"):
        turned = _orientation(image) if image.format == "TIFF" else 1
        image.load()
        check_size(*image.size, max_pixels=settings.max_pixels)  # an icon's header and its PNG may disagree
        orientation = _orientation(image)  # asked after load(), which turns a TIFF and says so
        image = to_rgb_or_grey(image, background=settings.background)
        if orientation in _UPRIGHT:
            image = image.transpose(_UPRIGHT[orientation])
        upright = size or image.size
        return _resized(image, Placement(max(orientation, turned), upright, upright), origin=origin, settings=settings)


def _resized(image: Image.Image | U8, placement: Placement, *, origin: str, settings: EncodeSettings) -> Decoded:
    """Give an upright image, in "L" or "RGB" or as an array of RGB, the size asked for."""
    upright = placement.upright
    target = upright if settings.resize is None else settings.resize.target(*upright)
    if not (1 <= target[0] <= MAX_SIDE and 1 <= target[1] <= MAX_SIDE):
        raise ImageError(f"{target[0]} × {target[1]} pixels; a JPEG has 1 to {MAX_SIDE:,} a side: use --resize")
    return Decoded(resize(image, target), origin, replace(placement, stored=target))


@contextlib.contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """Turn whatever an image library raises on a hostile file into an ImageError with a short reason.

    Of a damaged TIFF Pillow says "decoder error -2" and libtiff, on stderr, what is the matter: both become the reason.
    The list of types has no end (OSError, SyntaxError, struct.error, KeyError, zlib.error, MemoryError, …), so all
    are caught; the cause stays attached.
    """
    try:
        yield
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(f"{what}: not enough memory") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        if printed := stderr_capture.take_first_line():
            reason = f"{reason} ({printed.rstrip('.')})"
        if isinstance(error, EOFError) or "truncated" in reason.lower() or "not enough" in reason.lower():
            what = what.replace("damaged ", "truncated ", 1)
        raise ImageError(f"{what}: {reason}") from error


@contextlib.contextmanager
def _pillow(max_pixels: int) -> Iterator[None]:
    """Keep Pillow's own limit and its warnings (odd EXIF, odd tags, large images) out of the way.

    Our limit is checked first. Pillow's remains for images inside images, such as the PNG in an icon; it is only ever
    raised, so threads with different limits do not disturb each other.
    """
    if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = max_pixels
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _open(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    Image.init()
    formats = [each for each in Image.ID if each not in _NOT_BY_PILLOW]
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except Image.DecompressionBombError as error:
        raise ImageError(f"more pixels than --max-pixels allows ({max_pixels:,})") from error
    except Exception as error:
        if imagemagick.coder(data, name=name) is None:
            raise ImageError(_unidentified(data, formats, error)) from error
    else:
        if not _is_camera_raw(image, data):
            return image
        # Pillow takes a camera's raw file for the thumbnail that comes first in it.
        if imagemagick.coder(data, name=name) != "dng":
            raise ImageError("raw file of a camera, whose name does not end in that camera's extension")
    return imagemagick.read(data, name=name, max_pixels=max_pixels)


def _unidentified(data: bytes, formats: list[str], error: Exception) -> str:
    """Why Pillow opened nothing: the file is none of its formats, or is one whose header is damaged."""
    for each in formats:
        accept = Image.OPEN[each][1]
        if accept is not None and accept(data[:16].ljust(16, b"\0")) is True:
            detail = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
            return f"damaged or truncated {each}: its header cannot be read{detail}"
    return "not an image that Pillow or ImageMagick reads"


def _is_camera_raw(image: Image.Image, data: bytes) -> bool:
    if image.format != "TIFF":
        return False
    tags = getattr(image, "tag_v2", {})
    thumbnail_first = _TIFF_SUB_IFDS in tags and tags.get(_TIFF_SUBFILE_TYPE) == 1
    return _DNG_VERSION in tags or thumbnail_first or data[8:10] == b"CR"


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 … 8; 1 where there is none or it cannot be read.

    XMP may state one too. It is not looked at, as most decoders do not; and a JPEG that is kept losslessly must not
    differ from one that is encoded anew.
    """
    info = dict(image.info)
    for key in ("xmp", "XML:com.adobe.xmp"):
        image.info.pop(key, None)
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # an EXIF block that cannot be parsed says nothing; any type of error may come out of it
        return 1
    finally:
        image.info = info
    return value if isinstance(value, int) and value in _UPRIGHT else 1


def _upright_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    return (height, width) if _orientation(image) >= 5 else (width, height)


def _jpeg_origin(image: Image.Image, settings: EncodeSettings) -> str:
    if image.mode == "CMYK":
        return "CMYK JPEG"
    if image.info.get("progressive"):
        return "progressive JPEG"
    if _orientation(image) in _UPRIGHT:
        return "rotated by EXIF"
    size = _upright_size(image)
    if settings.resize is not None and settings.resize.target(*size) != size:
        return "resize"
    return "JPEG"


def _decode_smaller(image: Image.Image, target: tuple[int, int]) -> None:
    """Let libjpeg decode at 1/2, 1/4 or 1/8 as long as twice the target is left for the resampling filter."""
    width, height = (target[1], target[0]) if _orientation(image) >= 5 else target
    image.draft(None, (2 * width, 2 * height))


def _scale_transparency(image: Image.Image) -> None:
    """Bring a PNG's transparent colour to the 8 bits that Pillow gives the samples; it leaves it as in the file."""
    value = image.info.get("transparency")
    if image.format != "PNG" or value is None or not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return
    rawmode = image.tile[0][3]
    if rawmode == "RGB;16B":
        image.info["transparency"] = tuple(each >> 8 for each in value)
    elif rawmode in ("L;2", "L;4"):
        image.info["transparency"] = value * (85 if rawmode == "L;2" else 17)
    elif rawmode == "1":
        image.info["transparency"] = 255 if value else 0
