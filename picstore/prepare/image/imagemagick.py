"""Decoding of images by ImageMagick's library. No other module imports wand.

ImageMagick also runs scripts (MSL, MVG), fetches URLs, reads other files and starts Ghostscript. So it never guesses a
file's format: a coder (ImageMagick's word for the code of a format) is chosen here from ``_MAGIC`` and ``_EXTENSIONS``
and forced by an explicit prefix. Formats that are not listed are not read. A policy of picstore's own, which does not
depend on the machine's, limits what a coder may do.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
import warnings
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image.size_limits import check_jbig, check_size
from picstore.prepare.image.tiff_layout import STARTS as TIFF_STARTS

if TYPE_CHECKING:
    from wand.image import Image as WandImage

# fmt: off
# Name of ImageMagick's coder (format), offset in the file, and possible magic numbers there. The first match counts.
_MAGIC: tuple[tuple[str, int, tuple[bytes, ...]], ...] = (
    ("psd", 0, (b"8BPS",)), ("exr", 0, (b"\x76\x2f\x31\x01",)), ("hdr", 0, (b"#?RADIANCE", b"#?RGBE")),
    ("jxl", 0, (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")),
    ("jp2", 0, (b"\0\0\0\x0cjP  \r\n\x87\n",)), ("j2k", 0, (b"\xff\x4f\xff\x51",)),
    ("avif", 4, (b"ftypavif", b"ftypavis")),
    ("heic", 4, (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1")),
    ("dpx", 0, (b"SDPX", b"XPDS")), ("cin", 0, (b"\x80\x2a\x5f\xd7", b"\xd7\x5f\x2a\x80")),
    ("xcf", 0, (b"gimp xcf ",)), ("miff", 0, (b"id=ImageMagick",)), ("sgi", 0, (b"\x01\xda",)),
    ("sun", 0, (b"\x59\xa6\x6a\x95",)), ("wpg", 0, (b"\xffWPC",)), ("xpm", 0, (b"/* XPM */",)),
    ("dcm", 128, (b"DICM",)), ("viff", 0, (b"\xab\x01",)), ("mng", 0, (b"\x8aMNG\r\n\x1a\n",)),
    ("jng", 0, (b"\x8bJNG\r\n\x1a\n",)), ("djvu", 0, (b"AT&TFORM",)), ("pam", 0, (b"P7\n",)),
    ("pfm", 0, (b"PF\n", b"Pf\n")), ("vicar", 0, (b"LBLSIZE=",)),
    ("vips", 0, (b"\xb6\xa6\xf2\x08", b"\x08\xf2\xa6\xb6")), ("pgx", 0, (b"PG ML", b"PG LM")),
    ("rle", 0, (b"\x52\xcc",)), ("sfw", 0, (b"SFW9",)), ("bmp", 0, (b"BM",)), ("dds", 0, (b"DDS ",)),
    ("xwd", 4, (b"\0\0\0\x07",)), ("cals", 0, (b"srcdocid:",)),
    ("pict", 522, (b"\x00\x11\x02\xff\x0c\x00", b"\x11\x01")),
)

_RAW = frozenset({
    "3fr", "arw", "cr2", "cr3", "crw", "dcr", "dng", "erf", "iiq", "k25", "kdc", "mef", "mrw", "nef", "nrw",
    "orf", "pef", "raf", "rw2", "sr2", "srf", "x3f",
})
_OWN_NAME = ("aai", "avs", "cut", "mac", "mtv", "otb", "palm", "pcx", "rgf", "rla", "sct", "tim", "wbmp")
# fmt: on

# ImageMagick's coders of formats without a magic number, by the extension of the file's name.
_EXTENSIONS = {
    **dict.fromkeys(_RAW, "dng"),
    **dict.fromkeys(("tga", "icb", "vda", "vst"), "tga"),
    **dict.fromkeys(("pict", "pct"), "pict"),
    **{each: each for each in _OWN_NAME},
    **dict.fromkeys(("jbig", "jbg", "bie"), "jbig"),
}

# Coders (formats) whose images ``_convert_pixels`` rotates upright. HEIC and AVIF are left out, because their decoders
# rotate images themselves but leave the orientation in the EXIF unchanged.
_ORIENTED = frozenset({"dpx", "miff", "tga"})

# Coders (formats) that ImageMagick can read only from a file, not from memory.
_FROM_FILE = frozenset({"dng", "exr"})

# Coders that read each layer of a file as an image, so that the layers must be merged. PSD is not one of them, because
# its first image is the merged one.
_LAYERED = frozenset({"xcf"})

# Folder of the policy.xml with which ImageMagick is started.
POLICY = Path(__file__).parent / "imagemagick_policy"
_CONFIGURE_PATH = "MAGICK_CONFIGURE_PATH"
_CODER, _DELEGATE, _PATH = 1, 2, 4  # values of PolicyDomain in MagickCore/policy.h
_READ, _EXECUTE = 1, 4  # values of PolicyRights in MagickCore/policy.h
# Rights that the policy must deny: to start programs, to read any file, and to use coders that read files or URLs.
_FORBIDDEN = (
    (_DELEGATE, _EXECUTE, "any"),
    (_PATH, _READ, "/any"),
    (_PATH, _READ, "@any"),
    *((_CODER, _READ, each) for each in ("EPHEMERAL", "FILE", "FTP", "HTTP", "HTTPS", "LABEL", "MSL", "TEXT", "URL")),
)

_DPX_TRANSFER = "dpx:image.element[0].transfer-characteristic"

# Limit of ImageMagick's memory in bytes per pixel of the largest image. A copy of an image takes 8 bytes per pixel in
# version 6, and 16 or 20 in version 7; the limit allows one copy more than ImageMagick needs.
_BYTES_PER_PIXEL = 64


def find_coder(data: bytes, *, name: str = "") -> str | None:
    """Return ImageMagick's coder for a file, by the first bytes or the name; None if ImageMagick must not read it."""
    extension = PurePath(name).suffix[1:].lower()
    if data.startswith(TIFF_STARTS):
        return "dng" if extension in _RAW or data[8:10] == b"CR" else None
    for coder, offset, magics in _MAGIC:
        if data.startswith(magics, offset):
            return coder
    return _EXTENSIONS.get(extension)


def read_image(data: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Read the first frame, or the flattened picture of a layered file, in mode "L", "LA", "RGB" or "RGBA", in sRGB.

    Raises:
        ImageError: ``find_coder`` finds no coder; ImageMagick or its support of the format is missing; or the image is
            damaged or has more than ``max_pixels`` (checked before decoding if the header states the size).
    """
    coder = find_coder(data, name=name)
    if coder is None:
        raise ImageError("not an image that Pillow or ImageMagick reads")
    wand_image, wand_errors, wand_warning = _wand(coder)
    _set_resource_limits(max_pixels)
    if coder == "jbig":
        check_jbig(data, max_pixels=max_pixels)
    image: WandImage
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wand_warning)  # Ignore Wand's warnings, which are about metadata.
            with wand_image() as image:
                _load("Ping", image, data, coder)
                width, height = image.size
            # Ping returns the size 0 × 0 for some HEIC files: accept it, because the resource limits bound these files.
            check_size(max(1, width), max(1, height), max_pixels=max_pixels)
            with wand_image() as image:
                if coder in _LAYERED:
                    image.background_color = "transparent"
                _load("Read", image, data, coder)
                if coder in _LAYERED:
                    image.iterator_reset()
                    image.merge_layers("flatten")
                return _convert_pixels(image, coder)
    except wand_errors as error:
        raise ImageError(_reason(coder, error)) from error


def _wand(coder: str) -> tuple[Any, tuple[type[Exception], ...], type[Warning]]:
    """Import wand; return wand's class Image, its types of errors as a tuple, and its type of warnings."""
    try:
        start_library()
        from wand.exceptions import BaseWarning, WandException
        from wand.image import Image as WandImage
    except ImportError as error:
        raise ImageError(
            "needs ImageMagick's library, which is not installed (Debian, Ubuntu: apt install libmagickwand-6.q16-6; "
            f"macOS: brew install imagemagick){_or_wheels(coder)}"
        ) from error
    return WandImage, (WandException, TypeError, ValueError, AttributeError, OSError), BaseWarning


@functools.cache
def start_library() -> None:
    """Start ImageMagick's library under picstore's security policy; raise ImportError if the library is missing.

    A process has one policy, read when the library starts. Raise ImageError if other code in this process started the
    library under a policy that allows more.
    """
    own = os.environ.get(_CONFIGURE_PATH)
    os.environ[_CONFIGURE_PATH] = f"{POLICY}{os.pathsep}{own}" if own else str(POLICY)
    try:
        from wand.api import libmagick
        from wand.resource import genesis

        genesis()
    finally:
        del os.environ[_CONFIGURE_PATH]
        if own is not None:
            os.environ[_CONFIGURE_PATH] = own
    for domain, rights, pattern in _FORBIDDEN:
        if libmagick.IsRightsAuthorized(domain, rights, pattern.encode()):
            raise ImageError(
                f"ImageMagick's policy allows more than picstore's ({pattern}): another user of its library in this "
                "process started it first, or the machine's policy.xml says so; remove that rule"
            )


def _set_resource_limits(max_pixels: int) -> None:
    """Limit ImageMagick's memory and image size; a stricter limit of its policy.xml stays in force.

    ImageMagick's time limit is not used, because it counts from the process's start and ends the process.
    """
    from wand.resource import limits

    most_bytes = max_pixels * _BYTES_PER_PIXEL
    for resource in ("memory", "map", "disk"):
        limits[resource] = most_bytes
    # Limit the image size too, because "Read" may decode an image of another size than "Ping" found in the header.
    for resource in ("area", "width", "height"):
        limits[resource] = max_pixels
    limits["thread"] = 1


def _load(verb: Literal["Ping", "Read"], image: WandImage, data: bytes, coder: str) -> None:
    """Read an image, or with "Ping" only its header, by ``coder``; wand would choose another coder by the content."""
    from wand.api import library

    frame = "" if coder in _LAYERED and verb == "Read" else "[0]"
    if coder in _FROM_FILE:
        # picstore's policy.xml lets ImageMagick read only files whose names begin with this prefix or ImageMagick's.
        with tempfile.NamedTemporaryFile(prefix="picstore-imagemagick-") as file:
            file.write(data)
            file.flush()
            loaded = getattr(library, f"Magick{verb}Image")(image.wand, f"{coder}:{file.name}{frame}".encode())
    else:
        library.MagickSetFilename(image.wand, f"{coder}:{frame}".encode())
        loaded = getattr(library, f"Magick{verb}ImageBlob")(image.wand, data, len(data))
    if not loaded:
        # Raise the exception here, because wand's raise_exception() turns some errors into warnings.
        raise image.get_exception() or ValueError("no image in it")


def _convert_pixels(image: WandImage, coder: str) -> Image.Image:
    if coder in _ORIENTED:
        image.auto_orient()
    if coder == "dpx" and image.metadata.get(_DPX_TRANSFER) != "Linear" and image.colorspace == "rgb":
        # Declare the samples sRGB without changing them: ImageMagick wrongly takes the samples of every DPX that is
        # not logarithmic for linear light.
        image.colorspace = "srgb"
    grey = image.colorspace == "gray"
    if not grey and image.colorspace != "srgb":
        image.transform_colorspace("srgb")
    image.depth = 8
    mode = ("LA" if grey else "RGBA") if image.alpha_channel else ("L" if grey else "RGB")
    raw = {"L": "gray", "LA": "graya", "RGB": "rgb", "RGBA": "rgba"}[mode]
    result = Image.frombytes(mode, image.size, image.make_blob(raw))
    result.format = coder.upper()
    return result


def _reason(coder: str, error: Exception) -> str:
    # Remove what ImageMagick appends to a message: the line of its source code, and the temporary file's name.
    line = str(error)[:500].partition("\n")[0]
    text = re.sub(r"[`'\"]?\s*@ .*|`[^']*'", "", line).strip()
    if "delegate" in text.lower() or coder == "dng":
        lacking = f"{coder.upper()}: this ImageMagick library lacks the part that reads it"
        return f"{lacking} ({text[:120]}){_or_wheels(coder)}"
    return f"damaged {coder.upper()}: {text[:160] or type(error).__name__}"


def _or_wheels(coder: str) -> str:
    return "; or run: pip install 'picstore[formats]'" if coder in ("heic", "jxl", "dng") else ""
