"""Images that only ImageMagick reads. The only module that imports wand.

ImageMagick can do much more than read images: run scripts (MSL, MVG), fetch URLs, read other files, start Ghostscript.
So it never gets to guess what a file is. A coder is chosen here, from ``_MAGIC`` and ``_EXTENSIONS``, and forced by an
explicit prefix; whatever is not listed is not read. SVG goes through ``svg.sanitised`` first.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image import svg
from picstore.prepare.image.size_limits import check_jbig, check_size

if TYPE_CHECKING:
    from wand.image import Image as WandImage

# (offset, the bytes there, coder). The first that fits counts.
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"8BPS", "psd"),
    (0, b"\x76\x2f\x31\x01", "exr"),
    (0, b"#?RADIANCE", "hdr"),
    (0, b"#?RGBE", "hdr"),
    (0, b"\xff\x0a", "jxl"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
    (0, b"\xff\x4f\xff\x51", "j2k"),
    (4, b"ftypavif", "avif"),
    (4, b"ftypavis", "avif"),
    (4, b"ftypheic", "heic"),
    (4, b"ftypheix", "heic"),
    (4, b"ftyphevc", "heic"),
    (4, b"ftypmif1", "heic"),
    (4, b"ftypmsf1", "heic"),
    (0, b"SDPX", "dpx"),
    (0, b"XPDS", "dpx"),
    (0, b"\x80\x2a\x5f\xd7", "cin"),
    (0, b"\xd7\x5f\x2a\x80", "cin"),
    (0, b"gimp xcf ", "xcf"),
    (0, b"id=ImageMagick", "miff"),
    (0, b"SIMPLE  =", "fits"),
    (0, b"\x01\xda", "sgi"),
    (0, b"\x59\xa6\x6a\x95", "sun"),
    (0, b"\xffWPC", "wpg"),
    (0, b"/* XPM */", "xpm"),
    (128, b"DICM", "dcm"),
    (0, b"\xab\x01", "viff"),
    (0, b"\x8aMNG\r\n\x1a\n", "mng"),
    (0, b"\x8bJNG\r\n\x1a\n", "jng"),
    (0, b"AT&TFORM", "djvu"),
    (0, b"P7\n", "pam"),
    (0, b"PF\n", "pfm"),
    (0, b"Pf\n", "pfm"),
    (0, b"LBLSIZE=", "vicar"),
    (0, b"\xb6\xa6\xf2\x08", "vips"),
    (0, b"\x08\xf2\xa6\xb6", "vips"),
    (0, b"PG ML", "pgx"),
    (0, b"PG LM", "pgx"),
    (0, b"\x52\xcc", "rle"),
    (0, b"SFW9", "sfw"),
    (0, b"BM", "bmp"),
    (0, b"DDS ", "dds"),
    (4, b"\0\0\0\x07", "xwd"),
    (0, b"srcdocid:", "cals"),
    (522, b"\x00\x11\x02\xff\x0c\x00", "pict"),
    (522, b"\x11\x01", "pict"),
)

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# fmt: off
_RAW = frozenset({
    "3fr", "arw", "cr2", "cr3", "crw", "dcr", "dng", "erf", "iiq", "k25", "kdc", "mef", "mrw", "nef", "nrw",
    "orf", "pef", "raf", "rw2", "sr2", "srf", "x3f",
})
# fmt: on

# Formats without a magic number, by the extension of the file's name.
_EXTENSIONS = {
    **dict.fromkeys(_RAW, "dng"),
    **dict.fromkeys(("tga", "icb", "vda", "vst"), "tga"),
    **dict.fromkeys(("pict", "pct"), "pict"),
    **{each: each for each in ("aai", "avs", "cut", "mac", "mtv", "otb", "palm", "pcx", "rgf", "rla", "sct")},
    **{each: each for each in ("tim", "wbmp")},
    **dict.fromkeys(("jbig", "jbg", "bie"), "jbig"),
}

# Where an orientation beside the pixels is to be applied. HEIC and AVIF are turned by their decoder already, and the
# EXIF they carry still has the old value.
_ORIENTED = frozenset({"dpx", "miff", "tga", "tiff"})

_SVG_CODERS = ("rsvg", "msvg")

# Coders that read from a file, not from memory.
_FROM_FILE = frozenset({"dng", "exr"})

# Formats of which the first image is a layer; for PSD it is the flattened picture that the file holds.
_LAYERED = frozenset({"xcf"})

_DPX_TRANSFER = "dpx:image.element[0].transfer-characteristic"

# Copies that ImageMagick 6 (8 bytes a pixel) and 7 (16 or 20) hold at a time, with room for one more.
_BYTES_A_PIXEL = 64


def coder(data: bytes, *, name: str = "") -> str | None:
    """ImageMagick's name for the format of this file, or None if it is none that is read here."""
    extension = PurePath(name).suffix[1:].lower()
    if data.startswith(_TIFF):
        return "dng" if extension in _RAW or data[8:10] == b"CR" else "tiff"
    for offset, magic, each in _MAGIC:
        if data.startswith(magic, offset):
            return each
    if svg.is_svg(data):
        return "svg"
    return _EXTENSIONS.get(extension)


def read(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """The first frame, or the flattened picture of a layered file, as mode "L", "LA", "RGB" or "RGBA", in sRGB.

    Args:
        data: the whole file.
        name: the file's name; its extension counts where there is no magic number.
        max_pixels: more are refused, before they are decoded where the format's header tells.

    Raises:
        ImageError: not a format of the list, ImageMagick's library or the part of it is missing, damage, too large.
    """
    chosen = coder(data, name=name)
    if chosen is None:
        raise ImageError("not an image that Pillow or ImageMagick reads")
    wand_image, wand_errors, wand_warning = _wand()
    _limit(max_pixels)
    if chosen == "svg":
        chosen = _svg_coder()
        data = svg.sanitised(data, max_pixels=max_pixels, plain=chosen == "msvg")
    if chosen == "jbig":
        check_jbig(data, max_pixels=max_pixels)
    image: WandImage
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wand_warning)  # of what an image has beside its pixels
            with wand_image() as image:
                _load("Ping", image, data, chosen)
                width, height = image.size
            check_size(max(1, width), max(1, height), max_pixels=max_pixels)  # of some HEIC files Ping says 0 × 0
            with wand_image() as image:
                if chosen in _SVG_CODERS or chosen in _LAYERED:
                    image.background_color = "transparent"
                _load("Read", image, data, chosen)
                if chosen in _LAYERED:
                    image.iterator_reset()
                    image.merge_layers("flatten")
                return _pixels(image, chosen)
    except wand_errors as error:
        raise ImageError(_reason(chosen, error)) from error


def _wand() -> tuple[Any, tuple[type[Exception], ...], type[Warning]]:
    """wand's Image, the types of error that come out of it, and the type of its warnings."""
    try:
        from wand.exceptions import BaseWarning, WandException
        from wand.image import Image as WandImage
    except ImportError as error:
        raise ImageError(
            "needs ImageMagick's library, which is not installed (Debian, Ubuntu: apt install libmagickwand-6.q16-6; "
            "macOS: brew install imagemagick)"
        ) from error
    return WandImage, (WandException, TypeError, ValueError, AttributeError, OSError), BaseWarning


def _limit(max_pixels: int) -> None:
    """Bound what ImageMagick takes, whatever its policy.xml says; a stricter one stays in force.

    Its limit on time is not used: it counts from the start of the process, and ends the process. ``convert`` has one of
    its own, ``engine.time_limit``.
    """
    from wand.resource import limits

    wanted = max_pixels * _BYTES_A_PIXEL
    for resource in ("memory", "map", "disk"):
        limits[resource] = wanted
    for resource in ("area", "width", "height"):  # a header that Ping saw may differ from the one that counts
        limits[resource] = max_pixels
    limits["thread"] = 1


def _load(verb: Literal["Ping", "Read"], image: WandImage, data: bytes, chosen: str) -> None:
    """Read, or only the header, with the coder forced. wand's own ``format=`` lets the content override it."""
    from wand.api import library

    frame = "" if chosen in _LAYERED and verb == "Read" else "[0]"
    if chosen in _FROM_FILE:
        with tempfile.NamedTemporaryFile(prefix="picstore-") as file:
            file.write(data)
            file.flush()
            function = getattr(library, f"Magick{verb}Image")
            loaded = function(image.wand, f"{chosen}:{file.name}{frame}".encode())
    else:
        library.MagickSetFilename(image.wand, f"{chosen}:{frame}".encode())
        loaded = getattr(library, f"Magick{verb}ImageBlob")(image.wand, data, len(data))
    if not loaded:
        raise image.get_exception() or ValueError("no image in it")  # image.raise_exception() would only warn of some


def _pixels(image: WandImage, chosen: str) -> Image.Image:
    if chosen in _ORIENTED:
        image.auto_orient()
    if chosen == "dpx" and image.metadata.get(_DPX_TRANSFER) != "Linear" and image.colorspace == "rgb":
        image.colorspace = "srgb"  # the label only: ImageMagick takes all DPX but logarithmic for linear light
    grey = image.colorspace == "gray"
    if not grey and image.colorspace != "srgb":
        image.transform_colorspace("srgb")
    image.depth = 8
    mode = ("LA" if grey else "RGBA") if image.alpha_channel else ("L" if grey else "RGB")
    raw = {"L": "gray", "LA": "graya", "RGB": "rgb", "RGBA": "rgba"}[mode]
    result = Image.frombytes(mode, image.size, image.make_blob(raw))
    result.format = _label(chosen)
    return result


def _svg_coder() -> str:
    """librsvg where it is built in. "svg:" itself is not used: it may start another program."""
    from wand.version import formats

    return _SVG_CODERS[0] if "RSVG" in formats("RSVG") else _SVG_CODERS[1]


def _label(chosen: str) -> str:
    return "SVG" if chosen in _SVG_CODERS else chosen.upper()


def _reason(chosen: str, error: Exception) -> str:
    # ImageMagick appends where in its source and in which temporary file it was.
    text = re.sub(r"[`'\"]?\s*@ .*|`[^']*'", "", str(error).splitlines()[0] if str(error) else "").strip()
    if "delegate" in text.lower() or chosen == "dng":
        return f"{_label(chosen)}: this ImageMagick library lacks the part that reads it ({text[:120]})"
    return f"damaged {_label(chosen)}: {text[:160] or type(error).__name__}"
