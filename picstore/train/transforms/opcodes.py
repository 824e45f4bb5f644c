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
SCALE = 1  # operand: factor by which grey levels are multiplied
CONTRAST = 2  # operand: factor for the levels' differences from the mean grey level
SATURATION = 3  # operand: factor for the levels' differences from the pixel's grey level; 0 makes grey
HUE = 4  # operand: turn of the hue, −0.5 to 0.5
SOLARIZE = 5  # operand: threshold; grey levels at or above the threshold are inverted
POSTERIZE = 6  # operand: 256 / number of levels to keep
SOLARIZE_ADD = 7  # operands: number to add to levels below a limit, and the limit
PERMUTE = 8  # operands: indices of the channels that become red and green; the third becomes blue
LAST_POINTWISE = 8

AUTOCONTRAST = 9
EQUALIZE = 10
SHARPNESS = 11  # operand: 0 smooths, 1 changes nothing, and a larger factor sharpens
# Operands a to h, SAMPLING and FILL; pixel (x, y) shows (a x + b y + c, d x + e y + f) / (g x + h y + 1) of the input.
WARP = 12
# Operands: maximum shifts of x and y in pixels before the noise is blurred, standard deviations of that blur across and
# down; SAMPLING and FILL. The step's key is the seed of the noise.
ELASTIC = 13
MIX = 14  # operands: weight of a chain's result in AugMix's sum; MIX_FIRST, MIX_NEXT or MIX_LAST
# Operands: mean and standard deviation in grey levels; 1 to clip or 0 to wrap around. The key is the seed of the noise.
NOISE = 15
# Operands: number of taps on either side of the middle tap, across and down; standard deviation in pixels.
BLUR = 16
ERASE = 17  # operands: left, top, right, bottom of the box; its new red, green, blue
ERASE_RANDOM = 18  # operands: left, top, right, bottom of the box; the step's key is the seed of the values
NORMALIZE = 19  # operands: three means and three standard deviations, for levels divided by 255

OPERANDS = 12  # number of operands of each step

# Indices among the operands of WARP and ELASTIC. SAMPLING: interpolation. FILL to FILL + 2: red, green and blue shown
# outside of the image; if all three have the value NO_FILL, black is shown, as for the fill None in torchvision.
SAMPLING = 8
FILL = 9

LEAST_SIGMA = 1e-3  # minimum standard deviation of a blur in pixels

# Interpolations, values of the operand SAMPLING. BILINEAR is torchvision's, which blends pixels at the image's border
# with the fill. Pillow's do not blend: an output pixel is fill only if its center lies outside of the image.
NEAREST = 0
BILINEAR = 1
PILLOW_BILINEAR = 2
PILLOW_BICUBIC = 3
NO_FILL = -1.0

# Second operands of MIX, the step of AugMix that adds up the weighted results of chains of steps. MIX stands before the
# first chain, between chains, and after the last chain. The image before the first chain is the unchanged image.
MIX_FIRST = 0  # begin the sum with the unchanged image, from which the first chain begins too
MIX_NEXT = 1  # add a chain's result to the sum, and begin another chain with the unchanged image
MIX_LAST = 2  # add the last chain's result to the sum, and replace the image by the sum


class OutputDtype(IntEnum):
    """Dtype of a batch's images, as a number for kernels; color programs are the same for every dtype."""

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
