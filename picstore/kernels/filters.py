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
TIE = 1e-6  # pixels; a position no farther before a limit lies on it
MAX_COORDINATE = 1 << 24  # pixels, on every device; bounds every loop, and keeps positions far from an integer's end
SHARP_CUBIC, PLAIN_CUBIC = -0.5, -0.75  # Keys' parameter with antialiasing, and without

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
