"""Color transforms, as in ``torchvision.transforms.v2`` on uint8 images, drawn for a whole batch at once.

A transform adds no step for an image that it leaves unchanged, because of its probability or a factor of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore import rng
from picstore.arrays import F64, I64, U64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import Range, checked_channels, checked_probability, checked_range, is_number
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, ColorTransform

_TRIES = 10  # torchvision's, of RandomErasing; afterwards it erases nothing
_MAX_TAPS = 1023  # bounds the memory of a blur


class ColorJitter(ColorTransform):
    """Change brightness, contrast, saturation and hue by random factors, in random order. Uses 8 random numbers.

    Args:
        brightness, contrast, saturation: range of factors; a number x stands for max(0, 1 − x) to 1 + x.
        hue: range of turns, within −0.5 to 0.5; a number x stands for −x to x.

    Raises:
        UsageError: a range decreases or is out of bounds.
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
        steps = np.array([opcodes.SCALE, opcodes.CONTRAST, opcodes.SATURATION, opcodes.HUE])
        opcode = np.where(values == np.array([1, 1, 1, 0]), opcodes.NOTHING, steps)
        count = len(sizes)
        programs = [
            ColorProgram.from_step(
                np.take_along_axis(opcode, order[:, k : k + 1], axis=1)[:, 0],
                [np.take_along_axis(values, order[:, k : k + 1], axis=1)[:, 0]],
                count=count,
            )
            for k in range(4)
        ]
        return ColorProgram.chain(programs)


class RandomStep(ColorTransform):
    """A step of one operand, with probability ``p``."""

    def __init__(self, p: float, opcode: int, operand: float) -> None:
        self._p = checked_probability(p, type(self).__name__)
        self._opcode, self._operand = opcode, operand

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        chosen = np.where(random.uniform(1)[:, 0] < self._p, self._opcode, opcodes.NOTHING)
        return ColorProgram.from_step(chosen, [self._operand], count=len(sizes))


class RandomGrayscale(RandomStep):
    """Replace all channels by the grey level, with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p, opcodes.SATURATION, 0.0)


class RandomInvert(RandomStep):
    """Replace each level x by 255 − x, with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p, opcodes.SOLARIZE, 0.0)


class RandomSolarize(RandomStep):
    """Invert the levels from ``threshold`` on, with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1, or ``threshold`` exceeds 255.
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        if not is_number(threshold) or threshold > 255:
            raise UsageError(f"RandomSolarize: threshold is {threshold}; give a grey level of at most 255")
        super().__init__(p, opcodes.SOLARIZE, float(threshold))


class RandomPosterize(RandomStep):
    """Keep the ``bits`` highest bits of each level, with probability ``p``. Uses 1 random number.

    Raises:
        UsageError: ``p`` is not in 0 … 1, or ``bits`` is not an integer in 0 … 8.
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        if not isinstance(bits, int) or not 0 <= bits <= 8:
            raise UsageError(f"RandomPosterize: bits is {bits}; give an integer, 0 to 8")
        super().__init__(p, opcodes.POSTERIZE if bits < 8 else opcodes.NOTHING, 2.0 ** (8 - bits))


class GaussianNoise(ColorTransform):
    """Add normal noise, truncated to whole levels, to each value of each channel. Uses 1 random number.

    Args:
        mean, sigma: mean and standard deviation of the noise, as fractions of 255 grey levels.
        clip: clip values to 0 … 255; False lets them wrap around.

    Raises:
        UsageError: ``sigma`` is negative, or a number is not finite.
    """

    def __init__(self, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> None:
        if not (is_number(mean) and is_number(sigma) and sigma >= 0):
            raise UsageError(f"GaussianNoise: mean is {mean} and sigma {sigma}; give numbers, sigma at least 0")
        self._mean, self._sigma, self._clip = float(mean), float(sigma), bool(clip)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        key = pixel_keys(random.uniform(1)[:, 0])
        values = [255 * self._mean, 255 * self._sigma, float(self._clip)]
        return ColorProgram.from_step(opcodes.NOISE, values, key=key, count=len(sizes))


class GaussianBlur(ColorTransform):
    """Blur by a Gaussian, with reflection at the border. Uses 1 random number.

    An image smaller than the kernel is reflected repeatedly, where torchvision raises an error.

    Args:
        kernel_size: odd number of taps across and down; one number is both.
        sigma: standard deviation in pixels, or its range.

    Raises:
        UsageError: a size is not odd or not in 1 … 1023, or ``sigma`` is not above zero or decreases.
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: Range = (0.1, 2.0)) -> None:
        taps = list(kernel_size) if isinstance(kernel_size, Sequence) else [kernel_size]
        taps = taps * 2 if len(taps) == 1 else taps
        whole = len(taps) == 2 and all(isinstance(size, (int, np.integer)) for size in taps)
        if not whole or not all(0 < size <= _MAX_TAPS and size % 2 == 1 for size in taps):
            raise UsageError(
                f"GaussianBlur: kernel_size is {kernel_size}; give one or two odd integers, 1 to {_MAX_TAPS}"
            )
        self._radius = [int(size) // 2 for size in taps]
        bounds = [sigma, sigma] if is_number(sigma) else sigma
        self._sigma = checked_range(bounds, "GaussianBlur: sigma")
        if self._sigma[0] <= 0:
            raise UsageError(f"GaussianBlur: sigma is {sigma}; give one or two numbers above zero, the lesser first")

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        low, high = self._sigma
        sigma = low + (high - low) * random.uniform(1)[:, 0]
        return ColorProgram.from_step(opcodes.BLUR, [*self._radius, sigma], count=len(sizes))


class RandomErasing(ColorTransform):
    """Overwrite a random box, with probability ``p`` (Zhong et al., "Random Erasing Data Augmentation", 2017).

    Ten pairs of an area (uniform in ``scale`` × the image's) and a ratio height / width (log-uniform in ``ratio``) are
    drawn. The first box smaller than the image in both directions is placed uniformly; without one, nothing is erased.
    Uses 24 random numbers. ``value`` is a grey level before ``Normalize``, a normalized value after it.

    Args:
        p: probability.
        scale: least and greatest fraction of the image's area.
        ratio: least and greatest height / width.
        value: a number for all channels, one for each, or ``"random"``: standard normals after ``Normalize``, uniform
            grey levels before it, as in the paper. (torchvision truncates standard normals to bytes there: black with
            some white.)
        inplace: ignored.

    Raises:
        UsageError: ``p`` is not in 0 … 1, a range decreases or is out of bounds, or ``value`` is something else.
    """

    erases = True

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] = 0.0,
        inplace: bool = False,
    ) -> None:
        self._p = checked_probability(p, "RandomErasing")
        self._scale = checked_range(scale, "RandomErasing: scale")
        self._ratio = checked_range(ratio, "RandomErasing: ratio")
        if not 0 <= self._scale[0] <= self._scale[1] <= 1:
            raise UsageError(f"RandomErasing: scale is {scale}; give two numbers of 0 to 1")
        if self._ratio[0] <= 0:
            raise UsageError(f"RandomErasing: ratio is {ratio}; give two numbers above zero")
        self._random = isinstance(value, str)
        self._color = checked_channels(0.0 if value == "random" else value, "RandomErasing: value", 'or "random"')

    def check(self, *, normalized: bool) -> None:
        if not normalized and not all(0 <= level <= 255 for level in self._color):
            raise UsageError(
                f"RandomErasing: value is {self._color}; before Normalize give grey levels of 0 to 255, or put it after"
                " Normalize, where values are normalized"
            )

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        numbers = random.uniform(2 * _TRIES + 4)
        chance, key = numbers[:, 0], pixel_keys(numbers[:, 3])
        box, found = self._draw_boxes(sizes, numbers[:, 4 : 4 + _TRIES], numbers[:, 4 + _TRIES :], numbers[:, 1:3])
        step = opcodes.ERASE_RANDOM if self._random else opcodes.ERASE
        opcode = np.where(found & (chance < self._p), step, opcodes.NOTHING)
        return ColorProgram.from_step(opcode, [*box.T, *self._color], key=key, count=len(sizes))

    def _draw_boxes(self, sizes: I64, areas: F64, ratios: F64, position: F64) -> tuple[F64, Any]:
        """Boxes float64 (n, 4), left, top, right, bottom, and bool (n,), whether a box was found."""
        area = sizes.prod(axis=1)[:, None] * (self._scale[0] + (self._scale[1] - self._scale[0]) * areas)
        low, high = math.log(self._ratio[0]), math.log(self._ratio[1])
        ratio = np.exp(low + (high - low) * ratios)
        tries = np.stack([np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))], axis=2)
        fits = (tries < sizes[:, None, :]).all(axis=2)
        size = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
        corner = np.floor(position * (sizes - size + 1))
        return np.concatenate([corner, corner + size], axis=1), fits.max(axis=1) & (size > 0).min(axis=1)


class Normalize(ColorTransform):
    """Subtract ``mean`` from levels / 255 and divide by ``std``; images become floats. Uses no random numbers.

    Args:
        mean, std: one number for all channels, or one for each.
        inplace: ignored.

    Raises:
        UsageError: an argument is something else, or a ``std`` is zero.
    """

    normalizes = True

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self._mean = checked_channels(mean, "Normalize: mean")
        self._std = checked_channels(std, "Normalize: std")
        if not all(np.float32(std) != 0 for std in self._std):
            raise UsageError(f"Normalize: std is {std}; give numbers other than zero")

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        return ColorProgram.from_step(opcodes.NORMALIZE, [*self._mean, *self._std], count=len(sizes))


def pixel_keys(numbers: F64) -> U64:
    """Keys for random numbers of pixels, from numbers of 53 random bits."""
    return rng.keys(rng.key(rng.AUGMENT), (numbers * 2.0**53).astype(np.uint64))


def checked_factors(value: Range | None, name: str) -> tuple[float, float]:
    """Return least and greatest factor; a number x stands for max(0, 1 − x) to 1 + x, None for 1."""
    if value is None:
        return 1.0, 1.0
    if is_number(value) and not isinstance(value, Sequence) and value >= 0:
        return max(0.0, 1.0 - float(value)), 1.0 + float(value)
    low, high = checked_range(value, name)
    if low < 0:
        raise UsageError(f"{name} is {value}; give factors of at least 0")
    return low, high


def checked_turns(value: Range | None, name: str) -> tuple[float, float]:
    """Return least and greatest turn of the hue; a number x stands for −x to x, None for 0."""
    if value is None:
        return 0.0, 0.0
    single = is_number(value) and not isinstance(value, Sequence) and value >= 0
    low, high = (-float(value), float(value)) if single else checked_range(value, name)  # type: ignore[arg-type]
    if not -0.5 <= low <= high <= 0.5:
        raise UsageError(f"{name} is {value}; give a turn of at most 0.5, or two in -0.5 to 0.5")
    return low, high
