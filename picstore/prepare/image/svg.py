"""SVG documents recognized and sanitized: parsed, and only harmless elements and attributes written out again.

ImageMagick turns SVG into drawing commands of its own language, in which an unexpected quote or an ``image`` command
reads files. So none of the original text reaches it.
"""

from __future__ import annotations

import re
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from picstore.errors import ImageError
from picstore.prepare.image.size_limits import check_size

_MAX_BYTES = 32 << 20
_MAX_DEPTH = 256
_DEFAULT_SIZE = (300, 150)  # CSS 2.1, 10.3.2: a replaced element without a size

_ROOT = re.compile(rb"(?:<!--.*?-->|<\?.*?\?>|<!DOCTYPE[^>\[]*(?:\[[^\]]*\]\s*)?>|\s)*<(?:\w+:)?svg[\s>/]", re.DOTALL)
_LENGTH = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(px|pt|pc|in|cm|mm)?\s*")
_UNITS = {None: 1, "": 1, "px": 1, "pt": 96 / 72, "pc": 16, "in": 96, "cm": 96 / 2.54, "mm": 96 / 25.4}

# All other elements are dropped. <use> is refused below: nested, its drawing grows exponentially.
_SHAPES = frozenset(("path", "rect", "circle", "ellipse", "line", "polyline", "polygon"))
_BASIC = _SHAPES | {"svg", "g", "defs", "text", "tspan", "title", "desc"}
_NEEDS_LIBRSVG = frozenset(
    ("style", "linearGradient", "radialGradient", "stop", "clipPath", "mask", "pattern", "symbol", "filter")
)

# ImageMagick's own renderer takes 4.3 kB for each pixel of a circle's radius, and 8 s for dashes of 0.0001.
_MAX_RADIUS = 1e5  # pixels
_MIN_DASH = 0.001
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SCALE = re.compile(r"(?:scale|matrix)\s*\(([^)]*)\)")
_DASHES = re.compile(r"stroke-dasharray\s*:([^;]*)")

_REFERENCE = re.compile(r"url\((?!\s*#[\w.-]+\s*\))", re.IGNORECASE)


def is_svg(data: bytes) -> bool:
    """Test for an XML document whose first element is ``svg``, after a prolog, comments and a DOCTYPE."""
    return _ROOT.match(data[:65_536].removeprefix(b"\xef\xbb\xbf")) is not None


def sanitize_svg(data: bytes, *, max_pixels: int, basic_only: bool) -> bytes:
    """Rewrite an SVG document without scripts, metadata and animation, with its size in pixels.

    ImageError if it is not well-formed, refers to anything outside itself, embeds images, declares entities, or is too
    large; with ``basic_only`` also if it has gradients, patterns, masks or style sheets, which ImageMagick's own
    renderer draws wrongly.
    """
    if len(data) > _MAX_BYTES:
        raise ImageError(f"SVG of {len(data):,} bytes; {_MAX_BYTES:,} are read at most")
    writer = _Writer(max_pixels, basic_only=basic_only)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = writer.start_element
    parser.EndElementHandler = writer.end_element
    parser.CharacterDataHandler = writer.write_text
    parser.EntityDeclHandler = writer.refuse_entity
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise ImageError(f"damaged SVG: {error}") from error
    return "".join(writer.out).encode()


class _Writer:
    """Handler of the parser's events that writes the elements to draw."""

    def __init__(self, max_pixels: int, *, basic_only: bool) -> None:
        self.out: list[str] = []
        self._basic_only = basic_only
        self._max_pixels = max_pixels
        self._depth = 0
        self._scales = [1.0]  # of the open elements, each multiplied by the scales around it
        self._skipping = 0  # depth of the element that is dropped with its content; 0 for none

    def refuse_entity(self, *_: object) -> None:
        raise ImageError("SVG that declares entities is not read")

    def start_element(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ImageError(f"SVG with elements more than {_MAX_DEPTH} deep")
        self._scales.append(self._scales[-1] * _enlargement(attributes.get("transform", "")))
        tag = name.rpartition(" ")[2]
        if tag in ("image", "feImage", "use", "foreignObject"):
            raise ImageError(f"SVG with <{tag}> is not read: it can bring in other files")
        if self._skipping:
            return
        if self._basic_only and tag in _NEEDS_LIBRSVG:
            raise ImageError(f"SVG with <{tag}> needs an ImageMagick library that is built with librsvg")
        if tag not in _BASIC | _NEEDS_LIBRSVG:
            self._skipping = self._depth
            return
        safe = {key: _clean_text(value) for key, value in attributes.items() if " " not in key and key[:2] != "on"}
        for value in (value for key, value in attributes.items() if key.rpartition(" ")[2] == "href"):
            if not value.startswith("#"):
                raise ImageError("SVG that refers to something outside itself is not read")
            safe["xlink:href"] = _clean_text(value)
        if self._depth == 1:
            safe |= self._size_in_pixels(safe)
        self._check_effort(safe)
        self.out.append(f"<{tag}{''.join(f' {key}={quoteattr(value)}' for key, value in safe.items())}>")

    def end_element(self, name: str) -> None:
        self._scales.pop()
        if not self._skipping:
            self.out.append(f"</{name.rpartition(' ')[2]}>")
        elif self._skipping == self._depth:
            self._skipping = 0
        self._depth -= 1

    def write_text(self, text: str) -> None:
        if not self._skipping:
            self.out.append(escape(_clean_text(text)))

    def _check_effort(self, attributes: dict[str, str]) -> None:
        """Refuse values for which ImageMagick's own renderer takes gigabytes or minutes."""
        if not self._basic_only:
            return
        radii = _numbers(" ".join(attributes.get(key, "") for key in ("r", "rx", "ry")))
        if max(radii, default=0) * self._scales[-1] > _MAX_RADIUS:
            raise ImageError(f"SVG with a radius of more than {_MAX_RADIUS:,.0f} pixels")
        style = _DASHES.search(attributes.get("style", ""))
        for text in (attributes.get("stroke-dasharray", ""), style[1] if style else ""):
            if 0 < sum(_numbers(text)) < _MIN_DASH:
                raise ImageError(f"SVG with dashes of less than {_MIN_DASH} pixels")

    def _size_in_pixels(self, root: dict[str, str]) -> dict[str, str]:
        """Compute width and height in pixels, from their attributes or else the viewBox; refuse too many pixels."""
        try:
            box = [float(each) for each in re.split(r"[\s,]+", root.get("viewBox", "").strip())][2:]
        except ValueError:
            box = []
        default = box if len(box) == 2 and min(box) > 0 else _DEFAULT_SIZE
        size = [_pixels(root.get(key), other) for key, other in zip(("width", "height"), default, strict=True)]
        width, height = (max(1, round(min(each, 1e9))) for each in size)
        check_size(width, height, max_pixels=self._max_pixels)
        # ImageMagick draws black outlines if there is no stroke; SVG's initial value is none.
        stroke = root.get("stroke", "none")
        return {"xmlns": "http://www.w3.org/2000/svg", "width": str(width), "height": str(height), "stroke": stroke}


def _numbers(text: str) -> list[float]:
    return [abs(float(each)) for each in _NUMBER.findall(text)]


def _enlargement(transform: str) -> float:
    """Bound the scale of a ``transform``."""
    scale = 1.0
    for each in _SCALE.findall(transform):
        scale *= max(_numbers(each)[:4], default=1.0)
    return scale


def _pixels(text: str | None, default: float) -> float:
    match = _LENGTH.fullmatch(text or "")
    return float(match[1]) * _UNITS[match[2]] if match else default


def _clean_text(value: str) -> str:
    """Replace white space by blanks, and drop characters that could end a string in a drawing command."""
    if _REFERENCE.search(value) or "@import" in value.lower():
        raise ImageError("SVG that refers to something outside itself is not read")
    return re.sub(r"[\"'\\`@|]", "", re.sub(r"[\x00-\x20\x7f-\x9f]", " ", value))
