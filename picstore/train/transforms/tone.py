"""Transforms of tones and channels, as in ``torchvision.transforms.v2``; other color transforms are in ``color.py``."""

from __future__ import annotations

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import Range, checked_probability, is_number
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color import RandomStep, checked_factors, checked_turns
from picstore.train.transforms.color_program import ColorProgram, ColorTransform

_PERMUTATIONS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])


class Grayscale(ColorTransform):
    """Replace all channels by the grey level. Uses no random numbers.

    Args:
        num_output_channels: 3; torchvision's default is 1, but images of a batch have three channels.

    Raises:
        UsageError: another number of channels.
    """

    def __init__(self, num_output_channels: int = 3) -> None:
        if num_output_channels != 3:
            raise UsageError(
                f"Grayscale: num_output_channels is {num_output_channels}; give 3, and take images[:, :1] of a batch"
            )

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        return ColorProgram.from_step(opcodes.SATURATION, [0.0], count=len(sizes))


class RandomEqualize(RandomStep):
    """Equalize the histogram of each channel, with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, opcodes.EQUALIZE, 0.0)


class RandomAutocontrast(RandomStep):
    """Stretch the levels of each channel to 0 … 255, with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, opcodes.AUTOCONTRAST, 0.0)


class RandomAdjustSharpness(RandomStep):
    """Sharpen by a factor, with probability ``p``: 0 smooths, 1 changes nothing. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1, or ``sharpness_factor`` is negative.
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        if not is_number(sharpness_factor) or sharpness_factor < 0:
            raise UsageError(
                f"RandomAdjustSharpness: sharpness_factor is {sharpness_factor}; give a factor of at least 0"
            )
        changes = sharpness_factor != 1
        super().__init__(p, opcodes.SHARPNESS if changes else opcodes.NOTHING, float(sharpness_factor))


class RandomChannelPermutation(ColorTransform):
    """Permute red, green and blue, all permutations alike. Uses 1 random number."""

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        return _permute(random.uniform(1)[:, 0], np.ones(len(sizes), dtype=np.bool_))


class RandomPhotometricDistort(ColorTransform):
    """Change brightness, contrast, saturation, hue and the order of channels (Liu et al., "SSD", ECCV 2016).

    Each with probability ``p``; contrast comes after brightness or, as often, after the hue. Uses 11 random numbers.

    Args:
        brightness, contrast, saturation: least and greatest factor.
        hue: least and greatest turn, within −0.5 to 0.5.
        p: probability of each change.

    Raises:
        UsageError: a range decreases or is out of bounds, or ``p`` is not in 0 … 1.
    """

    def __init__(
        self,
        brightness: Range = (0.875, 1.125),
        contrast: Range = (0.5, 1.5),
        saturation: Range = (0.5, 1.5),
        hue: Range = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        name = "RandomPhotometricDistort"
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        ranges = [checked_factors(value, f"{name}: {parameter}") for parameter, value in given.items()]
        self._low, self._high = np.array([*ranges, checked_turns(hue, f"{name}: hue")]).T
        self._p = checked_probability(p, name)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        numbers = random.uniform(11)
        chosen = numbers[:, :5] < self._p
        brightness, contrast, saturation, hue = (self._low + (self._high - self._low) * numbers[:, 5:9]).T
        first = numbers[:, 9] < 0.5
        steps = [
            (opcodes.SCALE, brightness, chosen[:, 0]),
            (opcodes.CONTRAST, contrast, chosen[:, 1] & first),
            (opcodes.SATURATION, saturation, chosen[:, 2]),
            (opcodes.HUE, hue, chosen[:, 3]),
            (opcodes.CONTRAST, contrast, chosen[:, 1] & ~first),
        ]
        programs = [
            ColorProgram.from_step(np.where(which, opcode, opcodes.NOTHING), [value], count=len(sizes))
            for opcode, value, which in steps
        ]
        return ColorProgram.chain([*programs, _permute(numbers[:, 10], chosen[:, 4])])


def _permute(numbers: F64, chosen: Bools) -> ColorProgram:
    """Permutations by a random number for each image, of the chosen ones."""
    drawn = np.floor(numbers * len(_PERMUTATIONS)).astype(np.int64)
    opcode = np.where(chosen & (drawn > 0), opcodes.PERMUTE, opcodes.NOTHING)
    return ColorProgram.from_step(opcode, [*_PERMUTATIONS[drawn].T[:2]], count=len(numbers))
