"""Operations of AutoAugment, RandAugment and AugMix as steps of color programs, and policies of AutoAugment.

torchvision's transforms (``auto_augment.py``) and timm's (``timm_augment.py``) share both. Operations come in random
order, so rotations, shears and translations are steps on the canvas, not geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64
from picstore.train.transforms import opcodes
from picstore.train.transforms.affine import sine_cosine
from picstore.train.transforms.color_program import ColorProgram


class Operation(IntEnum):
    """Operation on an image; the comment after each operation says what its argument is."""

    IDENTITY = 0
    SHEAR_X = 1  # argument: slope, source pixels along x per pixel down
    SHEAR_Y = 2  # argument: slope, source pixels along y per pixel to the right
    TRANSLATE_X = 3  # argument: translation to the right in pixels
    TRANSLATE_Y = 4  # argument: translation down in pixels
    ROTATE = 5  # argument: angle in degrees, counter-clockwise
    BRIGHTNESS = 6  # argument: factor by which levels are multiplied; 1 changes nothing
    COLOR = 7  # argument: factor by which the saturation is multiplied; 0 makes grey, 1 changes nothing
    CONTRAST = 8  # argument: factor for the levels' differences from the mean grey level; 1 changes nothing
    SHARPNESS = 9  # argument: 0 smooths, 1 changes nothing, and a larger factor sharpens
    POSTERIZE = 10  # argument: number of highest bits of a level to keep
    SOLARIZE = 11  # argument: threshold; levels at or above the threshold are inverted
    SOLARIZE_ADD = 12  # argument: number to add to levels below 128
    AUTO_CONTRAST = 13
    EQUALIZE = 14
    INVERT = 15
    BLUR = 16  # argument: standard deviation of the blur in pixels


WARPS = [Operation.SHEAR_X, Operation.SHEAR_Y, Operation.TRANSLATE_X, Operation.TRANSLATE_Y, Operation.ROTATE]
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
# For each operation, the argument with which it changes nothing; NaN if it has no such argument.
_NEUTRAL = np.full(len(Operation), np.nan)
_NEUTRAL[[*WARPS, Operation.SOLARIZE_ADD]] = 0.0
_NEUTRAL[FACTORS] = 1.0
_NEUTRAL[Operation.POSTERIZE] = 8.0
_NEUTRAL[Operation.SOLARIZE] = 256.0
# Reach of a blur on either side, in standard deviations. The weights beyond, which are left out, add up to 1/16,000.
_BLUR_REACH = 4.0
_SOLARIZE_ADD_BELOW = 128.0


def make_steps(
    operations: I64, arguments: F64, sizes: I64, *, sampling: npt.ArrayLike, fill: Sequence[float]
) -> ColorProgram:
    """Return a color program that applies one operation to each image.

    Args:
        operations: int64 (n,), a value of ``Operation`` for each image.
        arguments: float64 (n,), argument of each operation.
        sizes: int64 (n, 2), widths and heights of the images.
        sampling: interpolation of warps, a value of the operand ``opcodes.SAMPLING``: one for all images, or (n,).
        fill: red, green and blue outside of the image.
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
    """Return operands a to h of ``opcodes.WARP``, float64 (n, 8), for n operations that shear, translate or rotate."""
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


Step: TypeAlias = tuple[str, float, int]  # name of the operation, probability that it is applied, magnitude


def _parse(text: str) -> list[list[Step]]:
    """Parse a policy: sub-policies separated by commas, each of steps separated by "+"; a missing magnitude is 0."""
    policy = []
    for pair in text.split(","):
        words = [step.split() for step in pair.split("+")]
        policy.append(
            [(name, float(chance), int(magnitude[0]) if magnitude else 0) for name, chance, *magnitude in words]
        )
    return policy


# Policies that the authors of AutoAugment found on ImageNet, CIFAR-10 and SVHN.
IMAGENET = _parse("""
    Posterize 0.4 8 + Rotate 0.6 9, Solarize 0.6 5 + AutoContrast 0.6, Equalize 0.8 + Equalize 0.6,
    Posterize 0.6 7 + Posterize 0.6 6, Equalize 0.4 + Solarize 0.2 4, Equalize 0.4 + Rotate 0.8 8,
    Solarize 0.6 3 + Equalize 0.6, Posterize 0.8 5 + Equalize 1, Rotate 0.2 3 + Solarize 0.6 8,
    Equalize 0.6 + Posterize 0.4 6, Rotate 0.8 8 + Color 0.4 0, Rotate 0.4 9 + Equalize 0.6,
    Equalize 0 + Equalize 0.8, Invert 0.6 + Equalize 1, Color 0.6 4 + Contrast 1 8, Rotate 0.8 8 + Color 1 2,
    Color 0.8 8 + Solarize 0.8 7, Sharpness 0.4 7 + Invert 0.6, ShearX 0.6 5 + Equalize 1,
    Color 0.4 0 + Equalize 0.6, Equalize 0.4 + Solarize 0.2 4, Solarize 0.6 5 + AutoContrast 0.6,
    Invert 0.6 + Equalize 1, Color 0.6 4 + Contrast 1 8, Equalize 0.8 + Equalize 0.6
""")
CIFAR10 = _parse("""
    Invert 0.1 + Contrast 0.2 6, Rotate 0.7 2 + TranslateX 0.3 9, Sharpness 0.8 1 + Sharpness 0.9 3,
    ShearY 0.5 8 + TranslateY 0.7 9, AutoContrast 0.5 + Equalize 0.9, ShearY 0.2 7 + Posterize 0.3 7,
    Color 0.4 3 + Brightness 0.6 7, Sharpness 0.3 9 + Brightness 0.7 9, Equalize 0.6 + Equalize 0.5,
    Contrast 0.6 7 + Sharpness 0.6 5, Color 0.7 7 + TranslateX 0.5 8, Equalize 0.3 + AutoContrast 0.4,
    TranslateY 0.4 3 + Sharpness 0.2 6, Brightness 0.9 6 + Color 0.2 8, Solarize 0.5 2 + Invert 0,
    Equalize 0.2 + AutoContrast 0.6, Equalize 0.2 + Equalize 0.6, Color 0.9 9 + Equalize 0.6,
    AutoContrast 0.8 + Solarize 0.2 8, Brightness 0.1 3 + Color 0.7 0, Solarize 0.4 5 + AutoContrast 0.9,
    TranslateY 0.9 9 + TranslateY 0.7 9, AutoContrast 0.9 + Solarize 0.8 3, Equalize 0.8 + Invert 0.1,
    TranslateY 0.7 9 + AutoContrast 0.9
""")
SVHN = _parse("""
    ShearX 0.9 4 + Invert 0.2, ShearY 0.9 8 + Invert 0.7, Equalize 0.6 + Solarize 0.6 6, Invert 0.9 + Equalize 0.6,
    Equalize 0.6 + Rotate 0.9 3, ShearX 0.9 4 + AutoContrast 0.8, ShearY 0.9 8 + Invert 0.4,
    ShearY 0.9 5 + Solarize 0.2 6, Invert 0.9 + AutoContrast 0.8, Equalize 0.6 + Rotate 0.9 3,
    ShearX 0.9 4 + Solarize 0.3 3, ShearY 0.8 8 + Invert 0.7, Equalize 0.9 + TranslateY 0.6 6,
    Invert 0.9 + Equalize 0.6, Contrast 0.3 3 + Rotate 0.8 4, Invert 0.8 + TranslateY 0 2,
    ShearY 0.7 6 + Solarize 0.4 8, Invert 0.6 + Rotate 0.8 4, ShearY 0.3 7 + TranslateX 0.9 3,
    ShearX 0.1 6 + Invert 0.6, Solarize 0.7 2 + TranslateY 0.6 7, ShearY 0.8 4 + Invert 0.8,
    ShearX 0.7 9 + TranslateY 0.8 3, ShearY 0.8 5 + AutoContrast 0.7, ShearX 0.7 2 + Invert 0.1
""")
# TensorFlow's policy for EfficientNet, which timm calls "v0".
EFFICIENTNET = _parse("""
    Equalize 0.8 + ShearY 0.8 4, Color 0.4 9 + Equalize 0.6, Color 0.4 1 + Rotate 0.6 8,
    Solarize 0.8 3 + Equalize 0.4, Solarize 0.4 2 + Solarize 0.6 2, Color 0.2 0 + Equalize 0.8,
    Equalize 0.4 + SolarizeAdd 0.8 3, ShearX 0.2 9 + Rotate 0.6 8, Color 0.6 1 + Equalize 1,
    Invert 0.4 + Rotate 0.6 0, Equalize 1 + ShearY 0.6 3, Color 0.4 7 + Equalize 0.6,
    Posterize 0.4 6 + AutoContrast 0.4, Solarize 0.6 8 + Color 0.6 9, Solarize 0.2 4 + Rotate 0.8 9,
    Rotate 1 7 + TranslateYRel 0.8 9, ShearX 0 0 + Solarize 0.8 4, ShearY 0.8 0 + Color 0.6 4,
    Color 1 0 + Rotate 0.6 2, Equalize 0.8 + Equalize 0, Equalize 1 + AutoContrast 0.6,
    ShearY 0.4 7 + SolarizeAdd 0.6 7, Posterize 0.8 2 + Solarize 0.6 10, Solarize 0.6 8 + Equalize 0.6,
    Color 0.8 6 + Rotate 0.4 5
""")
# 3-Augment of Touvron et al., "DeiT III" (ECCV 2022).
THREE_AUGMENT = _parse("Solarize 1 5, Desaturate 1 10, GaussianBlurRand 1 10")
