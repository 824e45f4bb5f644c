"""The operations that AutoAugment and its successors choose from, as steps of color programs.

They follow each other in random order, so rotations, shears and translations are canvas steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64
from picstore.train.transforms import opcodes
from picstore.train.transforms.affine import sine_cosine
from picstore.train.transforms.color_program import ColorProgram


class Operation(IntEnum):
    """An operation on an image, and the argument that it takes."""

    IDENTITY = 0
    SHEAR_X = 1  # slope: source pixels along x for a pixel down
    SHEAR_Y = 2  # slope
    TRANSLATE_X = 3  # pixels to the right
    TRANSLATE_Y = 4  # pixels down
    ROTATE = 5  # degrees, counter-clockwise
    BRIGHTNESS = 6  # factor, as are the next three operations'
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10  # bits that are kept
    SOLARIZE = 11  # least level that is inverted
    SOLARIZE_ADD = 12  # levels that are added, to levels below 128
    AUTO_CONTRAST = 13
    EQUALIZE = 14
    INVERT = 15
    BLUR = 16  # deviation in pixels


WARPS = [
    Operation.SHEAR_X,
    Operation.SHEAR_Y,
    Operation.TRANSLATE_X,
    Operation.TRANSLATE_Y,
    Operation.ROTATE,
]
FACTORS = [Operation.BRIGHTNESS, Operation.COLOR, Operation.CONTRAST, Operation.SHARPNESS]

_OPCODES = np.zeros(len(Operation), np.int64)
_OPCODES[WARPS] = opcodes.WARP
_OPCODES[Operation.BRIGHTNESS] = opcodes.SCALE
_OPCODES[Operation.COLOR] = opcodes.SATURATION
_OPCODES[Operation.CONTRAST] = opcodes.CONTRAST
_OPCODES[Operation.SHARPNESS] = opcodes.SHARPNESS
_OPCODES[Operation.POSTERIZE] = opcodes.POSTERIZE
_OPCODES[[Operation.SOLARIZE, Operation.INVERT]] = opcodes.SOLARIZE
_OPCODES[Operation.SOLARIZE_ADD] = opcodes.SOLARIZE_ADD
_OPCODES[Operation.AUTO_CONTRAST] = opcodes.AUTOCONTRAST
_OPCODES[Operation.EQUALIZE] = opcodes.EQUALIZE
_OPCODES[Operation.BLUR] = opcodes.BLUR

_NEUTRAL = np.full(len(Operation), np.nan)  # arguments that change nothing
_NEUTRAL[[*WARPS, Operation.SOLARIZE_ADD]] = 0.0
_NEUTRAL[FACTORS] = 1.0
_NEUTRAL[Operation.POSTERIZE] = 8.0
_NEUTRAL[Operation.SOLARIZE] = 256.0

_BLUR_REACH = 4.0  # deviations on either side; the rest of the weights adds up to 1/16,000
_SOLARIZE_ADD_BELOW = 128.0


def make_steps(
    operations: I64, arguments: F64, sizes: I64, *, sampling: npt.ArrayLike, fill: Sequence[float]
) -> ColorProgram:
    """Make a step for each image.

    Args:
        operations: int64 (n,), of ``Operation``.
        arguments: float64 (n,), what each operation takes.
        sizes: int64 (n, 2), width and height of the images.
        sampling: of ``opcodes.SAMPLING`` for all images, or (n,).
        fill: red, green, blue outside of the image, see ``opcodes.FILL``.
    """
    opcode = np.where(arguments == _NEUTRAL[operations], opcodes.NOTHING, _OPCODES[operations])
    first, second = arguments.copy(), np.zeros_like(arguments)
    first[operations == Operation.POSTERIZE] = 2.0 ** (8 - arguments[operations == Operation.POSTERIZE])
    first[operations == Operation.INVERT] = 0.0
    second[operations == Operation.SOLARIZE_ADD] = _SOLARIZE_ADD_BELOW
    program = ColorProgram.from_step(opcode, [first, second], count=len(operations))
    blurs, warps = opcode == opcodes.BLUR, opcode == opcodes.WARP
    if blurs.any():
        reach = np.ceil(_BLUR_REACH * arguments[blurs])
        program.operands[blurs, 0, :3] = np.stack([reach, reach, arguments[blurs]], axis=1)
    program.operands[warps, 0, : opcodes.SAMPLING] = _warp_maps(operations[warps], arguments[warps], sizes[warps])
    program.operands[warps, 0, opcodes.SAMPLING] = np.broadcast_to(sampling, warps.shape)[warps]
    program.operands[warps, 0, opcodes.FILL : opcodes.FILL + 3] = fill
    return program


def _warp_maps(operations: I64, arguments: F64, sizes: I64) -> F64:
    """Coefficients of ``opcodes.WARP``, float64 (n, 8)."""
    maps = np.zeros((len(operations), opcodes.SAMPLING))
    maps[:, (0, 4)] = 1.0
    for operation, column, sign in (
        (Operation.SHEAR_X, 1, 1.0),
        (Operation.SHEAR_Y, 3, 1.0),
        (Operation.TRANSLATE_X, 2, -1.0),
        (Operation.TRANSLATE_Y, 5, -1.0),
    ):
        which = operations == operation
        maps[which, column] = sign * arguments[which]
    turned = operations == Operation.ROTATE
    sine, cosine = sine_cosine(arguments[turned])
    x, y = sizes[turned].T / 2
    shift_x, shift_y = x - cosine * x + sine * y, y - sine * x - cosine * y
    maps[turned, :6] = np.stack([cosine, -sine, shift_x, sine, cosine, shift_y], axis=1)
    return maps
