"""SVG documents, which are recognized, checked, and drawn by resvg (the extra ``formats``).

resvg runs no script and opens no address, but it reads image files that a document names by a path. So a document is
parsed here first, and rejected if it refers to anything outside itself. Both parsers get the same text.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
from typing import Any
from xml.parsers import expat

from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image.size_limits import check_size, limit_memory

_MAX_BYTES = 32 << 20
_MAX_DEPTH = 256
# Number of bytes at a file's start in which the first element of an SVG must begin.
_PROLOG = 65_536
_DEFAULT_SIZE = (300.0, 150.0)  # width and height in pixels of an SVG that states no size (CSS 2.1, 10.3.2)
_UNITS = {"px": 1.0, "pt": 96 / 72, "pc": 16.0, "in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4}
_MAX_NUMBER = 40  # largest number of characters of a number in the root's width, height or viewBox
_ENCODINGS = frozenset(("utf-8", "us-ascii", "iso-8859-1", "windows-1252"))
_PICTURES = tuple(f"data:image/{kind}" for kind in ("png", "jpeg", "jpg", "gif", "webp"))
# Fonts for text whose font is missing; the first font that the machine has is used.
_FONTS = ("Liberation Sans", "DejaVu Sans", "Noto Sans", "Arial", "Helvetica", "FreeSans")


class _FirstElement(Exception):
    """Exception that stops the parser at the document's first element; the message is the element's local name."""


def is_svg(data: bytes) -> bool:
    """Return whether a file is an XML document whose first element, after any prolog and DOCTYPE, is ``svg``."""
    if data[:1] not in (b"<", b"\xef", b"\xfe", b"\xff", b" ", b"\t", b"\r", b"\n"):
        return False

    def stop(name: str, _: object) -> None:
        raise _FirstElement(name.rpartition(" ")[2])

    start = data[:_PROLOG]
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = stop
    try:
        parser.Parse(start if start.startswith((b"\xfe\xff", b"\xff\xfe")) else start.lstrip(), False)
    except _FirstElement as found:
        return str(found) == "svg"
    except (expat.ExpatError, ValueError, LookupError):
        return False
    return False


def draw(data: bytes, *, max_pixels: int) -> Image.Image:
    """Draw an SVG document as an image of mode RGBA, after limiting the memory of this process.

    Raise ImageError if the document is malformed or too large, refers to anything outside itself or declares entities,
    or if resvg is missing.
    """
    document, (width, height), has_text = check_document(data, max_pixels=max_pixels)
    resvg = _import_resvg()
    limit_memory(width * height)
    font = _find_font() if has_text else _FONTS[0]
    families = dict.fromkeys(
        (f"{each}_family" for each in ("font", "serif", "sans_serif", "cursive", "fantasy", "monospace")), font
    )
    try:
        png = resvg.svg_to_bytes(svg_string=document, width=width, height=height, dpi=96.0, **families)
    except ValueError as error:
        raise ImageError(f"damaged SVG: {str(error)[:160]}") from error
    image = Image.open(io.BytesIO(png), formats=["PNG"])
    image.load()
    image.format = "SVG"
    return image


def check_document(data: bytes, *, max_pixels: int) -> tuple[str, tuple[int, int], bool]:
    """Check an SVG document; return its source text, its width and height in pixels, and whether it draws any text.

    Errors are those of :func:`draw`.
    """
    if len(data) > _MAX_BYTES:
        raise ImageError(f"SVG of {len(data):,} bytes; {_MAX_BYTES:,} are read at most")
    document = _decode_text(data)
    parser = expat.ParserCreate(namespace_separator=" ")
    checker = _Checker(parser)
    # Deliver text whole: a reference such as ``url(`` that is cut between two events would pass the check.
    parser.buffer_text = True
    parser.buffer_size = 4 * len(document) + 1
    parser.StartElementHandler = checker.start_element
    parser.EndElementHandler = checker.end_element
    parser.CharacterDataHandler = _refuse_references
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(document, True)
    except (expat.ExpatError, ValueError) as error:
        raise ImageError(f"damaged SVG: {error}") from error
    size, is_complete = _size(checker.root)
    width, height = (max(1, math.floor(min(each, 1e9) + 0.5)) for each in size)
    check_size(width, height, max_pixels=max_pixels)
    if not is_complete:  # The root states no size; resvg would take the extent of the drawn elements instead.
        root = document.encode()[checker.root_offset :].decode()
        document = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">{root}</svg>'
    return document, (width, height), checker.has_text


def _decode_text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    else:
        declared: list[str] = []
        parser = expat.ParserCreate()
        parser.XmlDeclHandler = lambda _, encoding, __: declared.append(encoding or "")
        # Ignore errors here, because parsing the whole document will report them.
        with contextlib.suppress(expat.ExpatError, ValueError, LookupError):
            parser.Parse(data[:1024].lstrip(), False)
        encoding = (declared[0] if declared else "").lower() or "utf-8"
        if encoding not in _ENCODINGS:
            raise ImageError(f"SVG in the encoding {encoding[:40]!r} is not read; save it as UTF-8")
    try:
        return data.decode("utf-8-sig" if encoding == "utf-8" else encoding).strip()
    except UnicodeDecodeError as error:
        raise ImageError(f"damaged SVG: {error}") from error


class _Checker:
    """Handler of the parser's events, which rejects references to anything outside the document."""

    def __init__(self, parser: expat.XMLParserType) -> None:
        self.root: dict[str, str] = {}
        self.root_offset = 0
        self._parser = parser
        self.has_text = False
        self._depth = 0

    def start_element(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ImageError(f"SVG with elements more than {_MAX_DEPTH} deep")
        tag = name.rpartition(" ")[2]
        if tag == "foreignObject":
            raise ImageError("SVG with <foreignObject> is not read: it is not drawn")
        if self._depth == 1:
            self.root, self.root_offset = attributes, self._parser.CurrentByteIndex
        self.has_text |= tag == "text"
        for key, value in attributes.items():
            if key.rpartition(" ")[2] == "href":
                _check_address(tag, value)
            else:
                _refuse_references(value)

    def end_element(self, _: str) -> None:
        self._depth -= 1


def _refuse_entity(*_: object) -> None:
    raise ImageError("SVG that declares entities is not read")


def _check_address(tag: str, address: str) -> None:
    """Raise ImageError if an element would load something from outside the document; a link (``a``) loads nothing."""
    address = address.strip()
    allowed = address.startswith("#") or tag == "a"
    if tag in ("image", "feImage"):
        allowed |= address[:64].lower().startswith(_PICTURES)
    if not allowed:
        raise ImageError(f"SVG that refers to something outside itself is not read (<{tag[:40]}>)")


def _refuse_references(text: str) -> None:
    """Raise ImageError if a string contains ``@import``, or ``url()`` with anything except ``#name``."""
    text = text.lower()
    outside = any(not each.lstrip(" \t\r\n\"'").startswith("#") for each in text.split("url(")[1:])
    if outside or "@import" in text:
        raise ImageError("SVG that refers to something outside itself is not read")


def _size(root: dict[str, str]) -> tuple[tuple[float, float], bool]:
    """Compute width and height in pixels from the root element's attributes, its viewBox, or CSS's default.

    Return (width, height), and whether resvg can compute the size itself. Raise ImageError if a length cannot be read.
    """
    numbers = root.get("viewBox", "")[: 4 * _MAX_NUMBER].replace(",", " ").split()
    box = [_number(each) or 0.0 for each in numbers[2:4]] if len(numbers) == 4 else []
    has_box = len(box) == 2 and min(box) > 0
    default = (box[0], box[1]) if has_box else _DEFAULT_SIZE
    width, height = (_pixels(root.get(key, ""), full) for key, full in zip(("width", "height"), default, strict=True))
    is_complete = has_box or not (width is None or height is None or "%" in root["width"] + root["height"])
    if has_box and width is None and height is not None:
        width = height * default[0] / default[1]
    if has_box and height is None and width is not None:
        height = width * default[1] / default[0]
    return (width or default[0], height or default[1]), is_complete


def _pixels(length: str, full: float) -> float | None:
    """Convert a length to pixels, a percentage as a share of ``full``; return None for "auto" or an empty string."""
    length = length.strip()
    if length in ("", "auto"):
        return None
    unit = full / 100 if length.endswith("%") else _UNITS.get(length[-2:])
    number = _number(length if unit is None else length[: -1 if length[-1] == "%" else -2])
    if number is None:
        raise ImageError(
            f"damaged SVG: its size {length[:40]!r} is not a length above 0 in pixels or {', '.join(_UNITS)}"
        )
    return number * (unit or 1.0)


def _number(text: str) -> float | None:
    try:
        number = float(text) if len(text) <= _MAX_NUMBER and "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _import_resvg() -> Any:
    try:
        import resvg_py
    except ImportError as error:
        raise ImageError("SVG needs resvg: pip install 'picstore[formats]'") from error
    return resvg_py


@functools.cache
def _find_font() -> str:
    """Return an installed font; raise ImageError if there is none, because resvg would leave out text silently."""
    resvg = _import_resvg()
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><text y="9">{}</text></svg>'
    empty = resvg.svg_to_bytes(svg_string=drawing.format(""))
    for font in _FONTS:
        if resvg.svg_to_bytes(svg_string=drawing.format("M"), serif_family=font, font_family=font) != empty:
            return font
    raise ImageError(f"SVG with text needs a font of the machine, one of {', '.join(_FONTS)}")
