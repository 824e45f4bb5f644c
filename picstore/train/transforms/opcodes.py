"""Opcodes of color programs; the comment of each opcode names its operands.

Consecutive steps with opcodes up to ``LAST_POINTWISE`` are one pass over an image. Steps before ``NORMALIZE`` work on
grey levels 0 … 255. ``WARP`` and ``ELASTIC`` move pixels: they resample the finished canvas a second time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import IntEnum

from picstore.errors import UsageError

NOTHING = 0
SCALE = 1  # factor of the brightness
CONTRAST = 2  # factor of the contrast
SATURATION = 3  # factor of the saturation; 0 makes grey
HUE = 4  # turn of the hue, −0.5 to 0.5
SOLARIZE = 5  # threshold: grey levels at or above it are inverted
POSTERIZE = 6  # 256 / number of levels to keep
SOLARIZE_ADD = 7  # number to add to levels below a limit, and the limit
PERMUTE = 8  # indices of the channels that become red and green
LAST_POINTWISE = 8

AUTOCONTRAST = 9
EQUALIZE = 10
SHARPNESS = 11  # factor of the sharpness; 0 smooths, 1 changes nothing
# Operands a to h, SAMPLING and FILL; pixel (x, y) shows (a x + b y + c, d x + e y + f) / (g x + h y + 1) of the input.
WARP = 12
# Maximum shifts of x and y in pixels before the blur, deviations of the blur across and down; SAMPLING and FILL. Has a
# key, the seed of the noise.
ELASTIC = 13
MIX = 14  # weight of a chain's result; MIX_FIRST, MIX_NEXT or MIX_LAST
# Mean and standard deviation in grey levels; 1 to clip or 0 to wrap around. Has a key, the seed of the noise.
NOISE = 15
# Number of taps on either side of the middle tap, across and down; standard deviation in pixels.
BLUR = 16
ERASE = 17  # left, top, right, bottom of the box; red, green, blue
ERASE_RANDOM = 18  # left, top, right, bottom of the box; has a key, the seed of the values
NORMALIZE = 19  # three means and three standard deviations, in units of 0 … 1

OPERANDS = 12  # number of operands of each step

# Indices of operands of WARP and ELASTIC: the interpolation, and the first of red, green and blue outside of the image.
# Three times NO_FILL is black, like None in torchvision.
SAMPLING = 8
FILL = 9

LEAST_SIGMA = 1e-3  # minimum standard deviation of a blur in pixels

# Values of the operand SAMPLING. torchvision's interpolation blends pixels at the border with the fill. Pillow's
# repeats the border, and an output pixel whose center lies outside of the image is fill.
NEAREST = 0
BILINEAR = 1
PILLOW_BILINEAR = 2
PILLOW_BICUBIC = 3
NO_FILL = -1.0

# Second operands of MIX, which adds up results of chains by weight; each chain begins with the image as it was at
# MIX_FIRST.
MIX_FIRST = 0  # begin the sum with the image
MIX_NEXT = 1  # add a chain's result, and begin another chain
MIX_LAST = 2  # add a chain's result, and replace the image by the sum


class OutputDtype(IntEnum):
    """Dtype of a batch's images; color programs do not depend on it."""

    UINT8 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3

    @classmethod
    def from_dtype(cls, dtype: object) -> OutputDtype:
        """Convert a ``torch.dtype`` or its name; raise UsageError if images cannot have the dtype."""
        name = str(dtype).removeprefix("torch.").upper()
        if name not in cls.__members__:
            raise UsageError(f"dtype {dtype} is not possible for images; use uint8, float16, bfloat16 or float32")
        return cls[name]


def describe_step(opcode: int, operands: Sequence[float]) -> str:
    """Describe a step in words; return "" for a step that is not described, such as ``NORMALIZE``."""
    words = _WORDS.get(opcode)
    return "" if words is None else words(operands)


def _describe_warp(operands: Sequence[float]) -> str:
    a, b, _, d, e, _, g, h = operands[:8]
    if g or h:
        return "perspective"
    if abs(a * a + d * d - 1) < 1e-3 and abs(a - e) < 1e-3 and abs(b + d) < 1e-3 and (b or d):
        return f"rotated by {math.degrees(math.atan2(d, a)):.0f}°"
    return "sheared" if b or d else "shifted"


def _box(operands: Sequence[float]) -> str:
    left, top, right, bottom = operands[:4]
    return f"{right - left:.0f} × {bottom - top:.0f} at {left:.0f}, {top:.0f}"


_WORDS: dict[int, Callable[[Sequence[float]], str]] = {
    SCALE: lambda o: f"brightness × {o[0]:.3g}",
    CONTRAST: lambda o: f"contrast × {o[0]:.3g}",
    SATURATION: lambda o: f"saturation × {o[0]:.3g}" if o[0] else "grey",
    HUE: lambda o: f"hue {360 * o[0]:+.0f}°",
    SOLARIZE: lambda o: f"solarize from {o[0]:.0f}",
    POSTERIZE: lambda o: f"posterize to {256 / o[0]:.0f} levels",
    SOLARIZE_ADD: lambda o: f"add {o[0]:.0f} below {o[1]:.0f}",
    PERMUTE: lambda _: "channels permuted",
    AUTOCONTRAST: lambda _: "autocontrast",
    EQUALIZE: lambda _: "equalize",
    SHARPNESS: lambda o: f"sharpness × {o[0]:.3g}",
    WARP: _describe_warp,
    ELASTIC: lambda o: f"elastic, {o[0]:.3g} and {o[1]:.3g} pixels",
    MIX: lambda o: f"chain of weight {o[0]:.2f}",
    NOISE: lambda o: f"noise of {o[1]:.3g} levels",
    BLUR: lambda o: f"blur, σ {o[2]:.2f} pixels",
    ERASE: lambda o: f"erased {_box(o)}",
    ERASE_RANDOM: lambda o: f"noise in {_box(o)}",
}
