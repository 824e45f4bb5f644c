"""Choice of the library that decodes a file (docs/formats.md), and refusal of files that libraries read wrongly.

picstore reads FITS and most layouts of TIFF itself, resvg draws SVG, and Pillow reads all other formats that it knows.
The extra ``formats`` reads HEIC, JPEG XL and raw files of cameras, without a system package, and ImageMagick the rest.
Each library is imported for the first file of its format: importing all of them takes 0.3 s.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from picstore.errors import ImageError
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image import fits, imagemagick, svg, tiff, tiff_layout
from picstore.prepare.image.mend_files import leave_out_metadata
from picstore.prepare.image.size_limits import check_jpeg_xl, check_size, check_webp, open_by_pillow

# Formats that ``open_by_pillow`` must not open: EPS starts Ghostscript; the JXL plugin decodes before it states the
# size, so ``_read_jpeg_xl`` checks the size first; Pillow only identifies files of the remaining formats, or needs a
# system library to read them.
EXCLUDED_FROM_PILLOW = frozenset({"EPS", "JXL", "BUFR", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})

# Formats during whose decoding Pillow holds Python's lock: 64 million pixels take 6 s in JPEG 2000, and 170 s in QOI,
# whose decoder is Python code.
_HOLDS_LOCK = frozenset({"JPEG2000", "QOI"})

_TIFF_SUBFILE_TYPE, _TIFF_SUB_IFDS, _DNG_VERSION = 254, 330, 50706
_PAM_FIELD = re.compile(rb"^(MAXVAL|TUPLTYPE)[ \t]+(\S+)", re.MULTILINE)
_BITFIELDS = 3  # value of BMP's compression field for pixels with bit masks
# Start of a JPEG 2000 codestream up to the number of components in its SIZ segment (ISO/IEC 15444-1, A.5.1). The
# codestream is the whole file or the content of a box "jp2c".
_SIZ = re.compile(rb"(?:\A|jp2c|jp2c.{8})\xff\x4f\xff\x51.{38}", re.DOTALL)
_JP2 = (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")
_UNKNOWN = "not an image that Pillow or ImageMagick reads"


def open_image(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Open an image file with the library that decodes its format; images that Pillow decodes are not loaded yet.

    The extension of ``name``, the file's name, identifies formats without a magic number. Raise ImageError if the file
    is not an image, is damaged or known to be read wrongly, or no library is installed for its format.
    """
    check_webp(data, max_pixels=max_pixels)
    if svg.is_svg(data):
        return svg.draw(data, max_pixels=max_pixels)
    if data.startswith(tiff_layout.STARTS):
        return _open_tiff(data, name=name, max_pixels=max_pixels)
    if data.startswith(fits.START):
        with foreign_errors("damaged FITS"):
            return fits.read_image(data, max_pixels=max_pixels)
    if _is_misread_by_pillow(data):
        return _open_elsewhere(data, name=name, max_pixels=max_pixels)
    formats = _pillow_formats()
    try:
        return open_by_pillow(data, formats)
    except Image.DecompressionBombError as error:
        raise ImageError(f"more pixels than --max-pixels allows ({max_pixels:,})") from error
    except Exception as error:
        if imagemagick.find_coder(data, name=name) is None:
            raise ImageError(_explain(data, formats, error)) from error
    return _open_elsewhere(data, name=name, max_pixels=max_pixels)


def neither_hangs_nor_crashes(data: bytes, *, max_pixels: int) -> bool:
    """Return whether Pillow decodes a file correctly, without a crash and without holding Python's lock for long.

    Return False also if the file has more than ``max_pixels``, or more pixels than Pillow accepts.
    """
    try:
        bare = leave_out_metadata(data).data
        image = open_by_pillow(bare, _pillow_formats(but=_HOLDS_LOCK))
        # Leave an image above Pillow's own limit on pixels to the decoder process, which can raise the limit.
        check_size(*image.size, max_pixels=min(max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels))
        camera_raw = data.startswith(tiff_layout.STARTS) and _is_camera_raw(tiff_layout.read_tags(data), data)
        return not camera_raw and not _is_misread_by_pillow(bare)
    except Exception:  # The decoder process will report what is wrong with the file.
        return False


def _open_tiff(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Open a TIFF as its tags require. Develop a camera's raw file, of which Pillow would read only the thumbnail."""
    raw_by_name = imagemagick.find_coder(data, name=name) == "dng"
    with foreign_errors("damaged TIFF"):
        if _is_camera_raw(tiff_layout.read_tags(data), data):
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


def _is_camera_raw(tags: Mapping[int, Any], data: bytes) -> bool:
    thumbnail_first = _TIFF_SUB_IFDS in tags and tags.get(_TIFF_SUBFILE_TYPE) == 1
    return _DNG_VERSION in tags or thumbnail_first or data[8:10] == b"CR"


def _pillow_formats(*, but: Iterable[str] = ()) -> list[str]:
    Image.init()
    excluded = EXCLUDED_FROM_PILLOW.union(but)
    return [each for each in Image.ID if each not in excluded]


def _explain(data: bytes, formats: list[str], error: Exception) -> str:
    for each in formats:
        accept = Image.OPEN[each][1]
        if accept is not None and accept(data[:16].ljust(16, b"\0")) is True:
            detail = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
            return f"damaged or truncated {each}: its header cannot be read{detail}"
    return _UNKNOWN


def _open_elsewhere(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Read an image by a library of the extra ``formats``; if none reads it, by ImageMagick."""
    coder = imagemagick.find_coder(data, name=name) or ""
    _refuse_misread(data, coder)
    with foreign_errors(f"damaged {coder.upper()}"):
        by_wheel = read_by_wheel(data, coder=coder, max_pixels=max_pixels)
    return by_wheel or imagemagick.read_image(data, name=name, max_pixels=max_pixels)


def read_by_wheel(data: bytes, *, coder: str, max_pixels: int) -> Image.Image | None:
    """Read an image of ImageMagick's coder "heic", "jxl" or "dng" with another library, installed as a wheel.

    Return None for another coder, or if the library is missing. Raise ImageError, before decoding, if the image has
    more than ``max_pixels``. For a damaged file, raise the library's own error, of any type.
    """
    reader = {"heic": _read_heic, "jxl": _read_jpeg_xl, "dng": _read_raw}.get(coder)
    if reader is None:
        return None
    try:
        image = reader(data, max_pixels)
    except ImportError:
        return None
    image.format = coder.upper()
    return image


def _read_heic(data: bytes, max_pixels: int) -> Image.Image:
    import pillow_heif

    pillow_heif.options.DECODE_THREADS = 1  # one, because worker processes use all cores already
    image: Image.Image = pillow_heif.HeifImageFile(io.BytesIO(data))  # type: ignore[no-untyped-call]
    check_size(*image.size, max_pixels=max_pixels)
    return _without_exif(image)


def _read_jpeg_xl(data: bytes, max_pixels: int) -> Image.Image:
    from pillow_jxl import JpegXLImagePlugin

    JpegXLImagePlugin.DECODE_THREADS = 0
    check_jpeg_xl(data, max_pixels=max_pixels)  # Check the size now, because opening the file decodes all pixels.
    image: Image.Image = JpegXLImagePlugin.JXLImageFile(io.BytesIO(data))
    return _without_exif(image)


def _read_raw(data: bytes, max_pixels: int) -> Image.Image:
    import rawpy

    with rawpy.imread(io.BytesIO(data)) as raw:
        check_size(raw.sizes.raw_width, raw.sizes.raw_height, max_pixels=max_pixels)
        return Image.fromarray(raw.postprocess(use_camera_wb=True))


def _without_exif(image: Image.Image) -> Image.Image:
    """Remove an image's EXIF, because the decoder has already rotated the image as its HEIC or JPEG XL file states."""
    image.info.pop("exif", None)
    return image


def _is_misread_by_pillow(data: bytes) -> bool:
    """Return whether a file is a JPEG 2000 that Pillow misreads; raise ImageError if ImageMagick would misread it too.

    In pictures of two to four components, Pillow rounds the largest samples of more than 8 bits up to 256, which turns
    white into black. Pillow shifts samples of fewer bits, which turns white into grey.
    """
    siz = _SIZ.search(data) if data.startswith(_JP2) else None
    if siz is None:
        return False
    (count,) = struct.unpack_from(">H", data, siz.end() - 2)
    depths = set(data[siz.end() : siz.end() + 3 * count : 3])  # number of bits of each component, minus 1
    if depths == {7} or (count == 1 and depths <= {9, 11, 13, 15}):
        return False
    if len(depths) > 1 or max(depths, default=0) & 0x80 or count not in (1, 3, 4):
        raise ImageError("JPEG 2000 of signed samples, or of 2 or over 4 components in other depths than 8 bits")
    return True


def _refuse_misread(data: bytes, coder: str) -> None:
    """Raise ImageError for a PAM or BMP of a kind that ImageMagick reads wrongly without an error."""
    if coder == "pam":
        fields = dict(_PAM_FIELD.findall(data[: data.find(b"ENDHDR") + 1]))
        if b"ALPHA" in fields.get(b"TUPLTYPE", b"") and fields.get(b"MAXVAL") not in (b"255", b"65535"):
            raise ImageError("PAM with alpha is only read with a MAXVAL of 255 or 65,535")
    if coder == "bmp" and len(data) >= 34:
        bits, compression = struct.unpack_from("<HI", data, 28)
        if bits == 16 and compression == _BITFIELDS:
            raise ImageError("BMP of 16 bits is only read with 5, 6 and 5 or 5, 5 and 5 bits of red, green and blue")
