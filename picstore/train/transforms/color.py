"""Transforms of colors, tones and channels, as in ``torchvision.transforms.v2`` on uint8 images.

Parameters are drawn for a whole batch at once. If a transform leaves an image unchanged, because of a probability or a
factor of 1, the transform adds no step for the image.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64, Bools
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import (
    Range,
    checked_channels,
    checked_integer,
    checked_probability,
    checked_range,
    is_number,
)
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, ColorTransform

_PERMUTATIONS = np.array([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])


class ColorJitter(ColorTransform):
    """Change brightness, contrast, saturation and hue at random, in random order. Uses 8 random numbers.

    Args:
        brightness, contrast, saturation: minimum and maximum factor; a number x stands for max(0, 1 − x) to 1 + x.
        hue: minimum and maximum rotation of the hue in full turns, −0.5 to 0.5; a number x stands for −x to x.
    """

    def __init__(
        self,
        brightness: Range | None = None,
        contrast: Range | None = None,
        saturation: Range | None = None,
        hue: Range | None = None,
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        ranges = [checked_factors(value, f"ColorJitter: {name}") for name, value in given.items()]
        self._ranges = np.array([*ranges, checked_turns(hue, "ColorJitter: hue")])

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        numbers = random.uniform(8)
        order = np.argsort(numbers[:, :4], axis=1, kind="stable")
        low, high = self._ranges[:, 0], self._ranges[:, 1]
        values = low + (high - low) * numbers[:, 4:]
        changes = np.array([opcodes.SCALE, opcodes.CONTRAST, opcodes.SATURATION, opcodes.HUE])
        opcode = np.where(values == np.array([1, 1, 1, 0]), opcodes.NOTHING, changes)
        opcode, values = (np.take_along_axis(each, order, axis=1) for each in (opcode, values))
        steps = [ColorProgram.from_step(opcode[:, k], [values[:, k]], count=len(sizes)) for k in range(4)]
        return ColorProgram.chain(steps)


class RandomStep(ColorTransform):
    """Base of transforms that, with probability ``p``, apply one color step, always with the same operand."""

    def __init__(self, p: float, opcode: int, operand: float) -> None:
        self._p = checked_probability(p, type(self).__name__)
        self._opcode, self._operand = opcode, operand

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        chosen = np.where(random.uniform(1)[:, 0] < self._p, self._opcode, opcodes.NOTHING)
        return ColorProgram.from_step(chosen, [self._operand], count=len(sizes))


class RandomGrayscale(RandomStep):
    """Replace all channels by the grey level, with probability ``p``. Uses 1 random number."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p, opcodes.SATURATION, 0.0)


class RandomInvert(RandomStep):
    """Replace each level x by 255 − x, with probability ``p``. Uses 1 random number."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, opcodes.SOLARIZE, 0.0)


class RandomSolarize(RandomStep):
    """Invert levels of at least ``threshold`` (at most 255), with probability ``p``. Uses 1 random number."""

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        if not is_number(threshold) or threshold > 255:
            raise UsageError(f"RandomSolarize: threshold is {threshold}; give a grey level of at most 255")
        super().__init__(p, opcodes.SOLARIZE, float(threshold))


class RandomPosterize(RandomStep):
    """Keep the ``bits`` (0 to 8) highest bits of each level, with probability ``p``. Uses 1 random number."""

    def __init__(self, bits: int, p: float = 0.5) -> None:
        bits = checked_integer(bits, "RandomPosterize: bits", 0, 8)
        super().__init__(p, opcodes.POSTERIZE if bits < 8 else opcodes.NOTHING, 2.0 ** (8 - bits))


class Grayscale(ColorTransform):
    """Replace all channels by the grey level. Uses no random numbers.

    Args:
        num_output_channels: 3, unlike torchvision's default of 1, because images of a batch have three channels.
    """

    def __init__(self, num_output_channels: int = 3) -> None:
        if num_output_channels != 3:
            raise UsageError(
                f"Grayscale: num_output_channels is {num_output_channels}; give 3, and take images[:, :1] of a batch"
            )

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        return ColorProgram.from_step(opcodes.SATURATION, [0.0], count=len(sizes))


class RandomEqualize(RandomStep):
    """Equalize the histogram of each channel, with probability ``p``. Uses 1 random number."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, opcodes.EQUALIZE, 0.0)


class RandomAutocontrast(RandomStep):
    """Stretch the levels of each channel to 0 … 255, with probability ``p``. Uses 1 random number."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, opcodes.AUTOCONTRAST, 0.0)


class RandomAdjustSharpness(RandomStep):
    """Sharpen by a factor (0 smooths, 1 changes nothing), with probability ``p``. Uses 1 random number."""

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        if not is_number(sharpness_factor) or sharpness_factor < 0:
            raise UsageError(
                f"RandomAdjustSharpness: sharpness_factor is {sharpness_factor}; give a factor of at least 0"
            )
        changes = sharpness_factor != 1
        super().__init__(p, opcodes.SHARPNESS if changes else opcodes.NOTHING, float(sharpness_factor))


class RandomChannelPermutation(ColorTransform):
    """Permute red, green and blue, with equally likely permutations. Uses 1 random number."""

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        return _permute(random.uniform(1)[:, 0], np.ones(len(sizes), dtype=np.bool_))


class RandomPhotometricDistort(ColorTransform):
    """Change brightness, contrast, saturation, hue and the order of channels (Liu et al., "SSD", ECCV 2016).

    Each change has probability ``p``. The order is brightness, saturation, hue, channels; contrast comes after
    brightness or after hue, with equal probability. Uses 11 random numbers.

    Args:
        brightness, contrast, saturation: minimum and maximum factor.
        hue: minimum and maximum rotation of the hue in full turns, −0.5 to 0.5.
        p: probability of each change.
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


class Normalize(ColorTransform):
    """Subtract ``mean`` from levels / 255 and divide by ``std``; images become floats. Uses no random numbers.

    Args:
        mean, std: one number for all channels, or a list, tuple, array or tensor with one for each; std is not 0.
            Both are for values from 0 to 1, as in torchvision. If they seem to be for levels from 0 to 255, as in FFCV
            and DALI, a warning is given and they are used unchanged.
        inplace: no effect; accepted because torchvision has it.
    """

    normalizes = True

    def __init__(self, mean: npt.ArrayLike, std: npt.ArrayLike, inplace: bool = False) -> None:
        self._mean = checked_channels(mean, "Normalize: mean")
        self._std = checked_channels(std, "Normalize: std")
        if not all(np.float32(each) != 0 for each in self._std):
            raise UsageError(f"Normalize: std is {std!r}; give numbers other than zero")
        plausible = all(0 <= mean <= 255 and 1 <= std <= 255 for mean, std in zip(self._mean, self._std, strict=True))
        if plausible and max(*self._mean, *self._std) > 1:
            _warn_of_levels(self._mean, self._std)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        return ColorProgram.from_step(opcodes.NORMALIZE, [*self._mean, *self._std], count=len(sizes))


def _warn_of_levels(mean: Sequence[float], std: Sequence[float]) -> None:
    given = f"mean {_texts(mean)} and std {_texts(std)}"
    scaled = f"mean {_texts([each / 255 for each in mean])} and std {_texts([each / 255 for each in std])}"
    warnings.warn(
        f"Normalize has {given}, and images have values from 0 to 1: if these are of levels from 0 to 255, as FFCV and "
        f"DALI take them, give {scaled}",
        stacklevel=4,
    )


def _texts(numbers: Sequence[float]) -> str:
    return f"({', '.join(f'{number:.4g}' for number in numbers)})"


def checked_factors(value: Range | None, name: str) -> tuple[float, float]:
    """Return the minimum and the maximum factor; a number x stands for max(0, 1 − x) and 1 + x, None for 1 and 1."""
    if value is None:
        return 1.0, 1.0
    if is_number(value) and not isinstance(value, Sequence) and value >= 0:
        return max(0.0, 1.0 - float(value)), 1.0 + float(value)
    low, high = checked_range(value, name)
    if low < 0:
        raise UsageError(f"{name} is {value}; give factors of at least 0")
    return low, high


def checked_turns(value: Range | None, name: str) -> tuple[float, float]:
    """Return the minimum and the maximum turn of the hue; a number x stands for −x to x, and None for 0 to 0."""
    if value is None:
        return 0.0, 0.0
    single = is_number(value) and not isinstance(value, Sequence) and value >= 0
    low, high = (-float(value), float(value)) if single else checked_range(value, name)  # type: ignore[arg-type]
    if not -0.5 <= low <= high <= 0.5:
        raise UsageError(f"{name} is {value}; give a turn of at most 0.5, or two in -0.5 to 0.5")
    return low, high


def _permute(numbers: F64, chosen: Bools) -> ColorProgram:
    """Permute the channels of the images with ``chosen``, (n,); random ``numbers``, (n,), select the permutations."""
    drawn = np.floor(numbers * len(_PERMUTATIONS)).astype(np.int64)
    opcode = np.where(chosen & (drawn > 0), opcodes.PERMUTE, opcodes.NOTHING)
    return ColorProgram.from_step(opcode, [*_PERMUTATIONS[drawn].T[:2]], count=len(numbers))
