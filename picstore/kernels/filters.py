"""Interpolations: their codes, in the order of their filters' widths, and what defines the filters.

- ``NEAREST``: the pixel under the center of the output pixel, as torch's "nearest-exact" and Pillow's NEAREST. It is
  never widened. A center between two pixels takes the right or lower one.
- ``BOX``: the mean of the pixels whose centers lie under the output pixel, as Pillow's; ties likewise.
- ``BILINEAR``: a triangle.
- ``BICUBIC``: Keys' cubic, with the parameter −0.5 if it is antialiased, as torch's and Pillow's, otherwise −0.75, as
  torch's.
- ``LANCZOS``: of three lobes, as Pillow's.

Antialiased filters are widened by the scale where the source is larger than the output, and their weights are
normalized over the pixels within the clip. Without antialiasing the border of the clip is repeated.

This module needs no numba: transforms use it too.
"""

from __future__ import annotations

from typing import Any

NEAREST, BOX, BILINEAR, BICUBIC, LANCZOS = range(5)
HALF_WIDTHS = (0.5, 0.5, 1.0, 2.0, 3.0)  # in pixels, by code
GRID = 2.0**36  # positions on the source are multiples of 1 / GRID pixels: sums below 2**16 pixels are exact then, so
# that no pixel depends on how much of its image is decoded, and from where positions count
TIE = 2.0**-20  # pixels; a position no farther before a limit lies on it
MAX_COORDINATE = 1 << 24  # pixels, on every device; bounds every loop, and keeps positions far from an integer's end
SHARP_CUBIC, PLAIN_CUBIC = -0.5, -0.75  # Keys' parameter with antialiasing, and without
COSINE_SERIES = tuple(1 / (k * (k - 1)) for k in range(16, 0, -2))  # ratios of its terms, for Horner's rule

ONE_BITS = 14  # of a weight; the weights of an output pixel add up to 1 << ONE_BITS
ROW_BITS = 6  # fractional bits between the vertical and the horizontal pass

# Positions of a bilinear warp.
POSITION_BITS = 12  # of a weight
GENTLE = float(1 << 29)  # pixels; positions below it, in steps of 2**-32 pixels, are far from an integer's end

_CODES: dict[str | int, int] = {
    "nearest": NEAREST,
    "box": BOX,
    "bilinear": BILINEAR,
    "bicubic": BICUBIC,
    "lanczos": LANCZOS,
    "nearest-exact": NEAREST,
    0: NEAREST,  # Pillow's numbers
    1: LANCZOS,
    2: BILINEAR,
    3: BICUBIC,
    4: BOX,
}
NAMES = tuple(name for name in _CODES if isinstance(name, str))


def code_of(interpolation: Any) -> int | None:
    """Return the code of a name, or of a member of torchvision's or Pillow's enumeration; None for another value."""
    value = getattr(interpolation, "value", interpolation)
    return _CODES.get(value) if isinstance(value, str) or type(value) is int else None
