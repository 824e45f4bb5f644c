"""Files that Pillow or ImageMagick reads otherwise than they say: mended before or after, or refused by name.

Each case was found by files of known pixels, tests/prepare/image/test_known_pixels.py.
"""

from __future__ import annotations

import re
import struct

from PIL import Image, ImageFile

from picstore.errors import ImageError

_XPM = b"/* XPM */"
_XPM_HEAD = re.compile(rb'^"(\d+) +(\d+) +(\d+) +(\d+)', re.MULTILINE)
_XPM_COLOR = re.compile(rb"(\sc\s+#)([0-9A-Fa-f]+)")
_PAM_FIELD = re.compile(rb"^(MAXVAL|TUPLTYPE)[ \t]+(\S+)", re.MULTILINE)
_BITFIELDS = 3  # compression of a BMP
# The SIZ segment of a JPEG 2000 codestream, which is the file or a box of it (ISO/IEC 15444-1, A.5.1).
_SIZ = re.compile(rb"(?:\A|jp2c|jp2c.{8})\xff\x4f\xff\x51.{38}", re.DOTALL)
_JP2 = (b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")


def mend_data(data: bytes) -> bytes:
    """Write the colors of an XPM with two digits a channel, as Pillow takes the last six digits of any number of them.

    Of more digits the upper two are kept; one digit a channel counts 17 times, so that ``#fff`` is white.
    """
    if not data.startswith(_XPM):
        return data
    head = _XPM_HEAD.search(data)
    if head is None or len(head[3]) > 6:
        return data
    start = data.find(b"\n", head.end()) + 1
    *colors, rest = data[start:].split(b"\n", int(head[3])) if start else [data]
    key = 1 + int(head[4][:3])  # the quotation mark and the characters of a pixel, which may look like a color
    mended = [line[:key] + _XPM_COLOR.sub(_two_digits, line[key:]) for line in colors]
    return data[:start] + b"\n".join((*mended, rest))


def _two_digits(match: re.Match[bytes]) -> bytes:
    digits = match[2]
    if len(digits) % 3 or not 3 <= len(digits) <= 12:
        raise ImageError(f"damaged XPM: a color of {len(digits)} digits")
    each = len(digits) // 3
    channels = [digits[k : k + each] for k in range(0, len(digits), each)]
    return match[1] + b"".join(channel[:2] if each > 1 else 2 * channel for channel in channels)


def mend_image(image: Image.Image) -> Image.Image:
    """Correct what Pillow opened: a PNG's transparent color, and the alpha of a TGA of 16 bits.

    Pillow scales a PNG's samples to 8 bits, but not its transparent color. The sixteenth bit of a TGA means opaque to
    some programs and transparent to others, so it is ignored.
    """
    if not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return image
    rawmode = image.tile[0][3]
    if image.format == "TGA" and isinstance(rawmode, tuple) and rawmode[0] == "BGRA;15Z":
        return image.convert("RGB")
    value = image.info.get("transparency")
    if image.format == "PNG" and value is not None:
        if rawmode == "RGB;16B":
            image.info["transparency"] = tuple(each >> 8 for each in value)
        elif rawmode in ("L;2", "L;4"):
            image.info["transparency"] = value * (85 if rawmode == "L;2" else 17)
        elif rawmode == "1":
            image.info["transparency"] = 255 if value else 0
    return image


def is_misread_by_pillow(data: bytes) -> bool:
    """Test for a JPEG 2000 that ImageMagick has to read; ImageError for one that it does not read either.

    In pictures of two to four components Pillow rounds samples of more than 8 bits up to 256, so that white becomes
    black. Samples of fewer bits are shifted by Pillow, so that white becomes grey.
    """
    siz = _SIZ.search(data) if data.startswith(_JP2) else None
    if siz is None:
        return False
    (count,) = struct.unpack_from(">H", data, siz.end() - 2)
    depths = set(data[siz.end() : siz.end() + 3 * count : 3])
    if depths == {7} or (count == 1 and depths <= {9, 11, 13, 15}):  # bits − 1
        return False
    if len(depths) > 1 or max(depths, default=0) & 0x80 or count not in (1, 3, 4):
        raise ImageError("JPEG 2000 of signed samples, or of 2 or over 4 components in other depths than 8 bits")
    return True


def refuse_misread(data: bytes, coder: str) -> None:
    """Raise ImageError for a file whose pixels ImageMagick is known to read wrongly."""
    if coder == "pam":
        fields = dict(_PAM_FIELD.findall(data[: data.find(b"ENDHDR") + 1]))
        if b"ALPHA" in fields.get(b"TUPLTYPE", b"") and fields.get(b"MAXVAL") not in (b"255", b"65535"):
            raise ImageError("PAM with alpha is only read with a MAXVAL of 255 or 65,535")
    if coder == "bmp" and len(data) >= 34:
        bits, compression = struct.unpack_from("<HI", data, 28)
        if bits == 16 and compression == _BITFIELDS:
            raise ImageError("BMP of 16 bits is only read with 5, 6 and 5 or 5, 5 and 5 bits of red, green and blue")
