"""Opcodes of color programs and the meaning of their eight operands.

A run of steps up to ``LAST_POINTWISE`` is one pass over an image. Steps before ``NORMALIZE`` work on grey levels
0 … 255.
"""

from __future__ import annotations

from enum import IntEnum

from picstore.errors import UsageError

NOTHING = 0
SCALE = 1  # factor, of brightness
CONTRAST = 2  # factor
SATURATION = 3  # factor; 0 makes grey
HUE = 4  # turns, −0.5 to 0.5
SOLARIZE = 5  # least grey level that is inverted
POSTERIZE = 6  # 256 / number of levels
LAST_POINTWISE = 6

NOISE = 15  # mean and deviation in grey levels, 1 to clip or 0 to wrap; has a key
BLUR = 16  # taps on either side of the middle one, across and down, deviation in pixels
ERASE = 17  # left, top, right, bottom in pixels, red, green, blue
ERASE_RANDOM = 18  # left, top, right, bottom; has a key
NORMALIZE = 19  # means and deviations of red, green, blue in 0 … 1

OPERANDS = 8  # of each step


class OutputDtype(IntEnum):
    """The dtype of a batch's images; color programs do not depend on it."""

    UINT8 = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3

    @classmethod
    def from_dtype(cls, dtype: object) -> OutputDtype:
        """Convert a ``torch.dtype`` or its name.

        Raises:
            UsageError: images cannot have this dtype.
        """
        name = str(dtype).removeprefix("torch.").upper()  # members have torch's names
        if name not in cls.__members__:
            raise UsageError(f"dtype {dtype} is not possible for images; use uint8, float16, bfloat16 or float32")
        return cls[name]
