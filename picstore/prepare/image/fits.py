"""FITS, decoded as its header says (FITS standard 4.0), because Pillow and ImageMagick misread BSCALE and BZERO."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.prepare.image.pixel_conversion import integer_top, largest_usual, scale, strip_boxes
from picstore.prepare.image.size_limits import check_size

START = b"SIMPLE  ="

_BLOCK, _CARD = 2880, 80
_MAX_AXES = 999
# NumPy type of stored values, by value of the header's BITPIX.
_STORED = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}


@dataclass(frozen=True, slots=True)
class _Unit:
    """Header and data unit of a FITS file: the header's cards, and the offset of the data."""

    cards: dict[str, str]
    data: int

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.cards.get(key)
        if value is None and default is not None:
            return default
        try:
            return int(value or "")
        except ValueError as error:
            raise ImageError(f"damaged FITS: {key} is {value!r}, not a whole number") from error

    def real(self, key: str, default: float) -> float:
        value = self.cards.get(key, str(default))
        try:
            number = float(value.upper().replace("D", "E"))
        except ValueError as error:
            raise ImageError(f"damaged FITS: {key} is {value!r}, not a number") from error
        if not math.isfinite(number):
            raise ImageError(f"damaged FITS: {key} is {value}")
        return number

    @property
    def axes(self) -> list[int]:
        """Lengths of the axes, beginning with the axis that varies fastest."""
        count = self.integer("NAXIS")
        if not 0 <= count <= _MAX_AXES:
            raise ImageError(f"damaged FITS: {count} axes")
        lengths = [self.integer(f"NAXIS{k + 1}") for k in range(count)]
        if min(lengths, default=0) < 0:
            raise ImageError("damaged FITS: an axis of negative length")
        return lengths


def read_image(data: bytes, *, max_pixels: int) -> Image.Image:
    """Read the first picture of a FITS file, or the first plane of a cube, in mode "L".

    The file stores the picture's lowest row first. Values are BZERO + BSCALE × stored value; pixels of the value BLANK
    become black. Raise ImageError if the file is damaged or compressed, or its picture has more than ``max_pixels``.
    """
    unit = next((each for each in _iterate_units(data) if 0 not in each.axes and each.axes), None)
    if unit is None:
        raise ImageError("FITS without a picture")
    axes = unit.axes
    if len(axes) < 2:
        raise ImageError("FITS of one axis, which is not a picture")
    check_size(axes[0], axes[1], max_pixels=max_pixels)
    bits = unit.integer("BITPIX")
    if bits not in _STORED:
        raise ImageError(f"damaged FITS: BITPIX {bits}")
    count = axes[0] * axes[1]
    if unit.data + count * abs(bits) // 8 > len(data):
        raise ImageError("truncated FITS: its picture ends behind the file")
    stored = np.frombuffer(data, _STORED[bits], count, unit.data).reshape(axes[1], axes[0])[::-1]
    image = Image.new("L", (axes[0], axes[1]))
    for box, grey in _reduce(stored, unit, bits):
        image.paste(Image.fromarray(grey), box)
    image.format = "FITS"
    return image


def _iterate_units(data: bytes) -> Iterator[_Unit]:
    """Yield the file's primary unit, then each extension that holds an image."""
    at = 0
    while at < len(data):
        cards: dict[str, str] = {}
        end = at
        while (card := data[end : end + _CARD])[:8].rstrip() != b"END":
            if len(card) < _CARD:
                raise ImageError("truncated FITS: its header has no end")
            if card[8:10] == b"= ":
                text = card[10:].decode("latin-1")
                cards[card[:8].decode("latin-1").rstrip()] = text.split("/")[0].strip()
            end += _CARD
        start = -(-(end + _CARD) // _BLOCK) * _BLOCK
        unit = _Unit(cards, start)
        if cards.get("ZIMAGE") == "T":
            raise ImageError("compressed FITS is not read; unpack it with funpack")
        if at == 0 or cards.get("XTENSION", "").strip("' ") == "IMAGE":
            yield unit
        axes = unit.axes
        size = math.prod(axes) if axes else 0
        size = (unit.integer("PCOUNT", 0) + size) * unit.integer("GCOUNT", 1) * abs(unit.integer("BITPIX")) // 8
        at = start + -(-max(0, size) // _BLOCK) * _BLOCK


def _reduce(stored: npt.NDArray[Any], unit: _Unit, bits: int) -> Iterator[tuple[tuple[int, int], U8]]:
    """Yield the position (left, top) of each strip, and its values scaled to 0 … 255; ``bits`` is BITPIX."""
    factor, zero = unit.real("BSCALE", 1), unit.real("BZERO", 0)
    blank = unit.integer("BLANK") if bits > 0 and "BLANK" in unit.cards else None
    size = stored.shape[1], stored.shape[0]

    def values(box: tuple[int, int, int, int]) -> npt.NDArray[Any]:
        strip = stored[box[1] : box[3]]
        if bits < 0 or not whole:
            scaled: npt.NDArray[Any] = strip * np.float64(factor) + zero
        else:
            # For uint64, BZERO is 2**63, which int64 cannot hold. Add −2**63 instead: the sum has the same 64 bits.
            scaled = strip.astype(np.int64) + np.int64(int(zero) if zero < 2**63 else -(2**63))
            scaled = scaled.view(np.uint64) if zero == 2**63 else scaled
        if blank is not None:
            scaled[strip == blank] = 0
        return scaled

    # ``whole``: whether the values remain integers: BSCALE is 1, and BZERO is 0 or the offset between signed and
    # unsigned integers of this size. If not, compute in floats.
    unsigned = zero == (2.0 ** (bits - 1) if bits > 8 else 0)
    whole = bits > 0 and factor == 1 and (zero in (0, -128) if bits == 8 else zero == 0 or unsigned)
    boxes = list(strip_boxes(size))
    if not whole:
        top = largest_usual(values(box) for box in boxes)
    elif unsigned and bits <= 16:
        top = (1 << bits) - 1
    else:
        top = integer_top((values(box) for box in boxes), most=(1 << bits - (not unsigned)) - 1)
    for box in boxes:
        yield box[:2], scale(values(box), top)
