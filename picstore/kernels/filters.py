"""Interpolations: codes in the order of the filters' widths, and the constants that define the filters.

- ``NEAREST``: the pixel under the center of the output pixel, as torch's "nearest-exact" and Pillow's NEAREST. The
  filter is never widened. A center between two pixels takes the right or lower pixel.
- ``BOX``: the mean of the pixels whose centers lie under the output pixel, as Pillow's BOX; ties as for ``NEAREST``.
- ``BILINEAR``: a triangle filter.
- ``BICUBIC``: Keys' cubic; its parameter is −0.5 if antialiased, as in torch and Pillow, otherwise −0.75, as in torch.
- ``LANCZOS``: the Lanczos filter of three lobes, as Pillow's.

Antialiased filters are widened by the scale if the source is larger than the output, and their weights are normalized
over the pixels within the clip. Without antialiasing, the border of the clip is repeated.

This module does not import numba, because transforms use it too.
"""

from __future__ import annotations

from typing import Any

NEAREST, BOX, BILINEAR, BICUBIC, LANCZOS = range(5)
HALF_WIDTHS = (0.5, 0.5, 1.0, 2.0, 3.0)  # half-widths of the filters in pixels, by code
# Positions in a source image are rounded to multiples of 1 / GRID pixels, so that sums below 2**16 pixels are exact.
# So an output pixel is the same from any decoded part of its image, although positions count from the part's corner.
GRID = 2.0**36
# A position up to TIE pixels before a pixel's or a clip's border counts as on the border, so that rounding errors do
# not decide which pixel NEAREST takes.
TIE = 2.0**-20
# Maximum coordinate in pixels, on any device; it bounds every loop, and keeps positions far from integer overflow.
MAX_COORDINATE = 1 << 24
# Parameter ``a`` of Keys' cubic filter: with antialiasing, and without.
SHARP_CUBIC, PLAIN_CUBIC = -0.5, -0.75
# Factors of the cosine's series, last term first: term k is -COSINE_SERIES[-k] · argument**2 times the previous term.
COSINE_SERIES = tuple(1 / (k * (k - 1)) for k in range(16, 0, -2))

# Number of fractional bits of a weight; the weights of an output pixel add up to 1 << ONE_BITS.
ONE_BITS = 14
# Number of fractional bits of the results of resampling's vertical pass, which sums pixels along columns; the
# horizontal pass then sums these results along rows.
ROW_BITS = 6

# Number of fractional bits of a pixel's weight in a bilinear warp.
POSITION_BITS = 12
# Positions below this number of pixels are computed in int64 in units of 2**-32 pixels; larger ones could overflow.
GENTLE = float(1 << 29)

_CODES: dict[str | int, int] = {
    "nearest": NEAREST,
    "box": BOX,
    "bilinear": BILINEAR,
    "bicubic": BICUBIC,
    "lanczos": LANCZOS,
    "nearest-exact": NEAREST,
    # Keys that are the values of Pillow's enumeration ``Image.Resampling``.
    0: NEAREST,
    1: LANCZOS,
    2: BILINEAR,
    3: BICUBIC,
    4: BOX,
}
NAMES = tuple(name for name in _CODES if isinstance(name, str))


def code_of(interpolation: Any) -> int | None:
    """Return the code of an interpolation, given by name or by torchvision's or Pillow's enum; None if unknown."""
    value = getattr(interpolation, "value", interpolation)
    return _CODES.get(value) if isinstance(value, str) or type(value) is int else None
