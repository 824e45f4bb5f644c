"""Encode settings: size, quality, subsampling, background and limit on pixels of a training JPEG.

This module imports no image library, so that the command line starts quickly.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, TypedDict

from picstore.errors import UsageError

# Largest side in pixels, libjpeg's JPEG_MAX_DIMENSION; T.81 allows 65,535.
MAX_SIDE = 65_500

# Seconds for decoding and encoding an image; lossless JPEG 2000 of 268 million pixels (--max-pixels) took 134 s.
IMAGE_TIMEOUT = 300.0

ENCODERS = ("turbo", "mozjpeg")
# Chroma subsamplings in which picstore encodes JPEGs; picstore reads JPEGs of subsampling 440 too.
SUBSAMPLINGS = ("444", "422", "420")

_SIZE = re.compile(r"(?:(shorter|longer):([0-9]{1,5})|([0-9]{1,5})x([0-9]{1,5}))")


@dataclass(frozen=True, slots=True)
class Size:
    """Target size of ``--resize``.

    ``shorter`` and ``longer`` reduce the shorter or the longer side of an image to ``width`` (equal to ``height``),
    keep the aspect ratio and never enlarge. ``exact`` always gives ``width`` × ``height``.

    Raises:
        UsageError: a value is out of its range.
    """

    kind: Literal["shorter", "longer", "exact"]
    width: int
    height: int

    def __post_init__(self) -> None:
        if self.kind not in ("shorter", "longer", "exact"):
            raise UsageError(f"kind of size {self.kind!r} is unknown; known are shorter, longer, exact")
        if not (1 <= self.width <= MAX_SIDE and 1 <= self.height <= MAX_SIDE):
            raise UsageError(f"size {self} is out of range; give sides of 1 to {MAX_SIDE:,} pixels")
        if self.kind != "exact" and self.width != self.height:
            raise UsageError(f"{self.kind} takes one number, not {self.width} and {self.height}")

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse ``shorter:256``, ``longer:512`` or ``256x256``, sides of 1 … 65,500; else raise UsageError."""
        match = _SIZE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise UsageError(f"size {text!r} is not understood; write shorter:256, longer:512 or 256x256")
        kind, side, width, height = match.groups()
        if kind is None:
            return cls("exact", int(width), int(height))
        return cls("shorter" if kind == "shorter" else "longer", int(side), int(side))

    def target(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height, in pixels, to which an upright image is resized."""
        if self.kind == "exact":
            return self.width, self.height
        side = min(width, height) if self.kind == "shorter" else max(width, height)
        if side <= self.width:
            return width, height
        scale = self.width / side
        return max(1, round(width * scale)), max(1, round(height * scale))

    def __str__(self) -> str:
        return f"{self.width}x{self.height}" if self.kind == "exact" else f"{self.kind}:{self.width}"


def parse_color(color: str | tuple[int, int, int]) -> tuple[int, int, int]:
    """Parse ``ffffff`` or ``#ffffff`` to (red, green, blue), 0 … 255, or raise UsageError; return a tuple unchanged."""
    if not isinstance(color, str):
        return color
    try:
        red, green, blue = bytes.fromhex(color.removeprefix("#"))
    except ValueError as error:
        raise UsageError(f"{color!r} is not a color; write ffffff") from error
    return red, green, blue


# Name and type of each setting, and what an error message asks the user to give. Integral includes NumPy's integers.
_TYPES: tuple[tuple[str, Any, str], ...] = (
    ("quality", Integral, "an integer from 1 to 100"),
    ("max_pixels", Integral, "an integer of at least 1"),
    ("subsampling", str, "one of " + ", ".join(SUBSAMPLINGS)),
    ("encoder", str, "one of " + ", ".join(ENCODERS)),
    ("background", (tuple, list), "a color such as ffffff, or three numbers in 0 … 255"),
    ("reencode", bool, "True or False"),
)


class EncodeOptions(TypedDict, total=False):
    """Keyword arguments that set attributes of :class:`EncodeSettings`; ``resize`` is a string for ``Size.parse``."""

    resize: str | None
    quality: int
    subsampling: str
    background: tuple[int, int, int]
    max_pixels: int
    reencode: bool
    encoder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeSettings:
    """Settings for making a training JPEG of an image.

    Attributes:
        resize: target size; None keeps the size.
        quality: quality on libjpeg's scale, 1 … 100.
        subsampling: chroma subsampling, "444", "422" or "420"; not used for grey images.
        background: red, green and blue, 0 … 255, under transparent pixels.
        max_pixels: largest accepted number of pixels; an image whose header states more is rejected undecoded.
        reencode: whether to re-encode also JPEGs that could be kept without loss.
        encoder: "turbo" (libjpeg-turbo) or "mozjpeg", which has no subsampling "422".

    Raises:
        UsageError: a value is out of its range.
    """

    resize: Size | None = None
    quality: int = 90
    subsampling: str = "420"
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 1 << 28  # An image of this many pixels takes 1 GiB of memory at 4 bytes per pixel.
    reencode: bool = False
    encoder: str = "turbo"

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise UsageError(f"quality {self.quality} is not in 1 … 100")
        if self.subsampling not in SUBSAMPLINGS:
            raise UsageError(f"subsampling {self.subsampling!r} is unknown; known are {', '.join(SUBSAMPLINGS)}")
        if self.encoder not in ENCODERS:
            raise UsageError(f"encoder {self.encoder!r} is unknown; known are {', '.join(ENCODERS)}")
        if self.encoder == "mozjpeg" and self.subsampling == "422":
            raise UsageError(f"subsampling {self.subsampling} is none of mozjpeg's; choose 420, 444 or encoder turbo")
        levels: Any = self.background
        if len(levels) != 3 or not all(isinstance(level, Integral) and 0 <= int(level) <= 255 for level in levels):
            raise UsageError(f"background {levels} is not three numbers in 0 … 255")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels {self.max_pixels} is not at least 1")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object for the manifest, which ``from_json`` reads."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        resize = None if self.resize is None else str(self.resize)
        return {**values, "resize": resize, "background": list(self.background)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EncodeSettings:
        """Read settings from the result of ``to_json``; missing keys get their defaults.

        Raise UsageError if a key is unknown, or a value is of the wrong type or out of its range.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(value) - known):
            raise UsageError(f"unknown encode settings {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        given = dict(value)
        for name, kind, needed in _TYPES:
            fits = isinstance(given.get(name), kind) and (kind is bool or not isinstance(given[name], bool))
            if name in given and not fits:
                raise UsageError(f"{name} is {reprlib.repr(given[name])}; give {needed}")
        if given.get("resize") is not None:
            given["resize"] = Size.parse(given["resize"])
        if "background" in given:
            given["background"] = tuple(given["background"])
        return cls(**given)
