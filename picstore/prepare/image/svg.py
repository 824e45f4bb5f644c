"""SVG made safe to draw: a document is parsed, and only what is known to be harmless is written out again.

ImageMagick turns SVG into drawing commands of its own language, in which an unexpected quote or an ``image`` command
reads files. So nothing of the original text reaches it.
"""

from __future__ import annotations

import re
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from picstore.errors import ImageError
from picstore.prepare.image.size_limits import check_size

_MAX_BYTES = 32 << 20
_MAX_DEPTH = 256
_DEFAULT_SIZE = (300, 150)  # CSS 2.1, 10.3.2: of a replaced element without a size

_ROOT = re.compile(rb"(?:<!--.*?-->|<\?.*?\?>|<!DOCTYPE[^>\[]*(?:\[[^\]]*\]\s*)?>|\s)*<(?:\w+:)?svg[\s>/]", re.DOTALL)
_LENGTH = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(px|pt|pc|in|cm|mm)?\s*")
_UNITS = {None: 1, "": 1, "px": 1, "pt": 96 / 72, "pc": 16, "in": 96, "cm": 96 / 2.54, "mm": 96 / 25.4}

# Of all other elements nothing is kept. <use> is refused below: nested, it draws exponentially much.
_SHAPES = frozenset(("path", "rect", "circle", "ellipse", "line", "polyline", "polygon"))
_PLAIN = _SHAPES | {"svg", "g", "defs", "text", "tspan", "title", "desc"}
_ELABORATE = frozenset(
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
    """Whether this is an XML document whose first element is ``svg``, after a prolog, comments and a DOCTYPE."""
    return _ROOT.match(data[:65_536].removeprefix(b"\xef\xbb\xbf")) is not None


def sanitised(data: bytes, *, max_pixels: int, plain: bool) -> bytes:
    """The drawing of an SVG document, without scripts, metadata and animation, with its size in pixels stated.

    Args:
        data: the document.
        max_pixels: a drawing of more is refused.
        plain: refuse gradients, patterns, masks and style sheets, which ImageMagick's own renderer draws wrongly.

    Raises:
        ImageError: the document is not well-formed, refers to anything outside itself, embeds images, declares
            entities, or is too large.
    """
    if len(data) > _MAX_BYTES:
        raise ImageError(f"SVG of {len(data):,} bytes; {_MAX_BYTES:,} are read at most")
    writer = _Writer(max_pixels, plain=plain)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = writer.start
    parser.EndElementHandler = writer.end
    parser.CharacterDataHandler = writer.text
    parser.EntityDeclHandler = writer.entity
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise ImageError(f"damaged SVG: {error}") from error
    return "".join(writer.out).encode()


class _Writer:
    """Receives the events of the parser and writes those that are drawn."""

    def __init__(self, max_pixels: int, *, plain: bool) -> None:
        self.out: list[str] = []
        self._plain = plain
        self._max_pixels = max_pixels
        self._depth = 0
        self._scales = [1.0]  # of the elements that are open, each with that of those around it
        self._skipping = 0  # depth of the element that is left out with all it holds; 0: none

    def entity(self, *_: object) -> None:
        raise ImageError("SVG that declares entities is not read")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ImageError(f"SVG with elements more than {_MAX_DEPTH} deep")
        self._scales.append(self._scales[-1] * _enlargement(attributes.get("transform", "")))
        tag = name.rpartition(" ")[2]
        if tag in ("image", "feImage", "use", "foreignObject"):
            raise ImageError(f"SVG with <{tag}> is not read: it can bring in other files")
        if self._skipping:
            return
        if self._plain and tag in _ELABORATE:
            raise ImageError(f"SVG with <{tag}> needs an ImageMagick library that is built with librsvg")
        if tag not in _PLAIN | _ELABORATE:
            self._skipping = self._depth
            return
        kept = {key: _checked(value) for key, value in attributes.items() if " " not in key and key[:2] != "on"}
        for value in (value for key, value in attributes.items() if key.rpartition(" ")[2] == "href"):
            if not value.startswith("#"):
                raise ImageError("SVG that refers to something outside itself is not read")
            kept["xlink:href"] = _checked(value)
        if self._depth == 1:
            kept |= self._size(kept)
        self._check_effort(kept)
        self.out.append(f"<{tag}{''.join(f' {key}={quoteattr(value)}' for key, value in kept.items())}>")

    def end(self, name: str) -> None:
        self._scales.pop()
        if not self._skipping:
            self.out.append(f"</{name.rpartition(' ')[2]}>")
        elif self._skipping == self._depth:
            self._skipping = 0
        self._depth -= 1

    def text(self, text: str) -> None:
        if not self._skipping:
            self.out.append(escape(_checked(text)))

    def _check_effort(self, attributes: dict[str, str]) -> None:
        """Refuse what takes ImageMagick's own renderer gigabytes or minutes."""
        if not self._plain:
            return
        radii = _numbers(" ".join(attributes.get(key, "") for key in ("r", "rx", "ry")))
        if max(radii, default=0) * self._scales[-1] > _MAX_RADIUS:
            raise ImageError(f"SVG with a radius of more than {_MAX_RADIUS:,.0f} pixels")
        style = _DASHES.search(attributes.get("style", ""))
        for text in (attributes.get("stroke-dasharray", ""), style[1] if style else ""):
            if 0 < sum(_numbers(text)) < _MIN_DASH:
                raise ImageError(f"SVG with dashes of less than {_MIN_DASH} pixels")

    def _size(self, root: dict[str, str]) -> dict[str, str]:
        """Width and height in pixels, from their attributes or else the viewBox; refused if they are too many."""
        try:
            box = [float(each) for each in re.split(r"[\s,]+", root.get("viewBox", "").strip())][2:]
        except ValueError:
            box = []
        default = box if len(box) == 2 and min(box) > 0 else _DEFAULT_SIZE
        size = [_pixels(root.get(key), other) for key, other in zip(("width", "height"), default, strict=True)]
        width, height = (max(1, round(min(each, 1e9))) for each in size)
        check_size(width, height, max_pixels=self._max_pixels)
        # ImageMagick draws black outlines where no stroke is stated; SVG's initial value is none.
        stroke = root.get("stroke", "none")
        return {"xmlns": "http://www.w3.org/2000/svg", "width": str(width), "height": str(height), "stroke": stroke}


def _numbers(text: str) -> list[float]:
    return [abs(float(each)) for each in _NUMBER.findall(text)]


def _enlargement(transform: str) -> float:
    """How much larger a ``transform`` makes what it is about, at most."""
    found = 1.0
    for each in _SCALE.findall(transform):
        found *= max(_numbers(each)[:4], default=1.0)
    return found


def _pixels(text: str | None, default: float) -> float:
    match = _LENGTH.fullmatch(text or "")
    return float(match[1]) * _UNITS[match[2]] if match else default


def _checked(value: str) -> str:
    """White space to blanks, without quotes and backslashes: nothing is left that ends a string in a command."""
    if _REFERENCE.search(value) or "@import" in value.lower():
        raise ImageError("SVG that refers to something outside itself is not read")
    return re.sub(r"[\"'\\`@|]", "", re.sub(r"[\x00-\x20\x7f-\x9f]", " ", value))
