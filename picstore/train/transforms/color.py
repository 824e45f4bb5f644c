"""Transforms of colour, with the names, parameters and meaning of ``torchvision.transforms.v2`` on uint8 images.

Each takes its random numbers for the whole batch at once. Where a transform leaves an image as it is, because of its
probability or because a factor is 1, no step is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from picstore import rng
from picstore.arrays import F64, I64, U64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import ColorTransform, Program
from picstore.train.transforms.geometry import Draws

Range: TypeAlias = "float | Sequence[float]"

_TRIES = 10  # torchvision's, of RandomErasing: then nothing is erased
_MAX_TAPS = 1023  # of a blur; beyond any image it could be meant for, and bounds its memory
_CHANNELS = 3


class ColorJitter(ColorTransform):
    """Change brightness, contrast, saturation and hue by random factors, in random order. Takes 8 draws.

    Args:
        brightness, contrast, saturation: a number x stands for factors from max(0, 1 − x) to 1 + x, two numbers for
            those from the first to the second.
        hue: a number x stands for turns of −x to x, at most 0.5, two numbers for those from the first to the second.

    Raises:
        UsageError: a range is not increasing or out of bounds.
    """

    def __init__(
        self,
        brightness: Range | None = None,
        contrast: Range | None = None,
        saturation: Range | None = None,
        hue: Range | None = None,
    ) -> None:
        given = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        ranges = [_factors(value, name) for name, value in given.items()]
        self._ranges = np.array([*ranges, _turns(hue)])

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        numbers = draws.unit(8)
        order = np.argsort(numbers[:, :4], axis=1, kind="stable")
        low, high = self._ranges[:, 0], self._ranges[:, 1]
        values = low + (high - low) * numbers[:, 4:]
        steps = np.array([opcodes.SCALE, opcodes.CONTRAST, opcodes.SATURATION, opcodes.HUE])
        code = np.where(values == np.array([1, 1, 1, 0]), opcodes.NOTHING, steps)
        count = len(sizes)
        programs = [
            Program.of_step(
                np.take_along_axis(code, order[:, k : k + 1], axis=1)[:, 0],
                [np.take_along_axis(values, order[:, k : k + 1], axis=1)[:, 0]],
                count=count,
            )
            for k in range(4)
        ]
        return Program.chain(programs)


class RandomGrayscale(ColorTransform):
    """Make all channels the grey level, with probability ``p``. Takes 1 draw.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    def __init__(self, p: float = 0.1) -> None:
        self._p = _probability(p, "RandomGrayscale")

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        return _sometimes(self._p, opcodes.SATURATION, [0.0], draws, len(sizes))


class RandomInvert(ColorTransform):
    """Turn each level x into 255 − x, with probability ``p``. Takes 1 draw.

    Raises:
        UsageError: ``p`` is not in 0 … 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        self._p = _probability(p, "RandomInvert")

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        return _sometimes(self._p, opcodes.SOLARIZE, [0.0], draws, len(sizes))


class RandomSolarize(ColorTransform):
    """Invert the levels from ``threshold`` on, with probability ``p``. Takes 1 draw.

    Raises:
        UsageError: ``p`` is not in 0 … 1, or the threshold above 255.
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        if not _is_number(threshold) or threshold > 255:
            raise UsageError(f"RandomSolarize: threshold is {threshold}; give a grey level, at most 255")
        self._threshold = float(threshold)
        self._p = _probability(p, "RandomSolarize")

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        return _sometimes(self._p, opcodes.SOLARIZE, [self._threshold], draws, len(sizes))


class RandomPosterize(ColorTransform):
    """Keep the ``bits`` highest bits of each level, with probability ``p``. Takes 1 draw.

    Raises:
        UsageError: ``p`` is not in 0 … 1, or ``bits`` no integer of 0 … 8.
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        if not isinstance(bits, int) or not 0 <= bits <= 8:
            raise UsageError(f"RandomPosterize: bits is {bits}; give an integer, 0 to 8")
        self._bits = bits
        self._p = _probability(p, "RandomPosterize")

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        code = opcodes.POSTERIZE if self._bits < 8 else opcodes.NOTHING
        return _sometimes(self._p, code, [2.0 ** (8 - self._bits)], draws, len(sizes))


class GaussianNoise(ColorTransform):
    """Add normal noise to each value of each channel; what is added is truncated to whole levels. Takes 1 draw.

    Args:
        mean, sigma: of the noise, as parts of 255 grey levels.
        clip: False lets values wrap around at 0 and 256 instead.

    Raises:
        UsageError: ``sigma`` is negative, or a number is not finite.
    """

    def __init__(self, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> None:
        if not (_is_number(mean) and _is_number(sigma) and sigma >= 0):
            raise UsageError(f"GaussianNoise: mean is {mean} and sigma {sigma}; give numbers, sigma not below 0")
        self._mean, self._sigma, self._clip = float(mean), float(sigma), bool(clip)

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        key = _keys(draws.unit(1)[:, 0])
        values = [255 * self._mean, 255 * self._sigma, float(self._clip)]
        return Program.of_step(opcodes.NOISE, values, key=key, count=len(sizes))


class GaussianBlur(ColorTransform):
    """Blur by a Gaussian, mirrored at the border. Takes 1 draw.

    An image smaller than the kernel is mirrored again and again, where torchvision raises an error.

    Args:
        kernel_size: number of taps across and down, or of both; odd.
        sigma: pixels; of two numbers the least and the greatest.

    Raises:
        UsageError: a size is not odd or not in 1 … 1023, or ``sigma`` not above zero and increasing.
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
        bounds = [sigma, sigma] if _is_number(sigma) else sigma
        self._sigma = _two(bounds, "GaussianBlur: sigma")
        if self._sigma[0] <= 0:
            raise UsageError(f"GaussianBlur: sigma is {sigma}; give one or two numbers above zero, the lesser first")

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        low, high = self._sigma
        sigma = low + (high - low) * draws.unit(1)[:, 0]
        return Program.of_step(opcodes.BLUR, [*self._radius, sigma], count=len(sizes))


class RandomErasing(ColorTransform):
    """Overwrite a random box, with probability ``p`` (Zhong et al., "Random Erasing Data Augmentation", 2017).

    Ten times an area (uniform in ``scale`` × the image's) and a ratio height / width (log-uniform in ``ratio``) are
    drawn; the first box that is smaller than the image in both directions is placed uniformly; if there is none,
    nothing is erased. Takes 24 draws. May stand before or behind ``Normalize``, and fills in what holds there: grey
    levels 0 to 255, or normalised values.

    Args:
        p: probability.
        scale: least and greatest part of the area.
        ratio: least and greatest height / width.
        value: a number for all channels, one for each, or "random": standard normals behind ``Normalize``, uniform
            grey levels before it, as in the paper. (torchvision truncates standard normals to bytes there, which
            gives black with some white.)
        inplace: has no meaning here.

    Raises:
        UsageError: ``p`` is not in 0 … 1, a range is not increasing or out of bounds, or ``value`` is none of these.
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
        self._p = _probability(p, "RandomErasing")
        self._scale = _two(scale, "RandomErasing: scale")
        self._ratio = _two(ratio, "RandomErasing: ratio")
        if not 0 <= self._scale[0] <= self._scale[1] <= 1:
            raise UsageError(f"RandomErasing: scale is {scale}; give two numbers of 0 to 1")
        if self._ratio[0] <= 0:
            raise UsageError(f"RandomErasing: ratio is {ratio}; give two numbers above zero")
        self._random = isinstance(value, str)
        if value == "random":
            value = 0.0
        self._color = _channels(value, "RandomErasing: value", 'or "random"')

    def check(self, *, normalised: bool) -> None:
        if not normalised and not all(0 <= level <= 255 for level in self._color):
            raise UsageError(
                f"RandomErasing: value {self._color} is no grey level of 0 to 255; put it behind Normalize, where it"
                " is in normalised units, or give a grey level"
            )

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        numbers = draws.unit(2 * _TRIES + 4)
        chance, key = numbers[:, 0], _keys(numbers[:, 3])
        box, found = self._draw(sizes, numbers[:, 4 : 4 + _TRIES], numbers[:, 4 + _TRIES :], numbers[:, 1:3])
        step = opcodes.ERASE_RANDOM if self._random else opcodes.ERASE
        code = np.where(found & (chance < self._p), step, opcodes.NOTHING)
        return Program.of_step(code, [*box.T, *self._color], key=key, count=len(sizes))

    def _draw(self, sizes: I64, areas: F64, ratios: F64, place: F64) -> tuple[F64, Any]:
        """Boxes (n, 4), left, top, right, bottom, and whether there is one."""
        area = sizes.prod(axis=1)[:, None] * (self._scale[0] + (self._scale[1] - self._scale[0]) * areas)
        low, high = math.log(self._ratio[0]), math.log(self._ratio[1])
        ratio = np.exp(low + (high - low) * ratios)
        tries = np.stack([np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))], axis=2)
        fits = (tries < sizes[:, None, :]).all(axis=2)
        size = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
        corner = np.floor(place * (sizes - size + 1))
        return np.concatenate([corner, corner + size], axis=1), fits.max(axis=1) & (size > 0).min(axis=1)


class Normalize(ColorTransform):
    """Levels, as parts of 255, minus ``mean`` and divided by ``std``: the images become floats. Takes no draws.

    Args:
        mean, std: one number for all channels or one for each.
        inplace: has no meaning here.

    Raises:
        UsageError: other numbers than these, or a ``std`` of zero.
    """

    normalises = True

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self._mean = _channels(mean, "Normalize: mean")
        self._std = _channels(std, "Normalize: std")
        if not all(np.float32(std) != 0 for std in self._std):
            raise UsageError(f"Normalize: std is {std}; give numbers other than zero")

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        return Program.of_step(opcodes.NORMALIZE, [*self._mean, *self._std], count=len(sizes))


def _sometimes(p: float, code: int, values: Sequence[float], draws: Draws, count: int) -> Program:
    chosen = draws.unit(1)[:, 0] < p
    return Program.of_step(np.where(chosen, code, opcodes.NOTHING), values, count=count)


def _keys(numbers: F64) -> U64:
    """Keys for what is drawn pixel by pixel, from numbers of 53 random bits."""
    return rng.keys(rng.key(rng.AUGMENT), (numbers * 2.0**53).astype(np.uint64))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value)


def _probability(p: float, name: str) -> float:
    if not _is_number(p) or not 0 <= p <= 1:
        raise UsageError(f"{name}: p is {p}; give a probability, 0 to 1")
    return float(p)


def _two(bounds: Any, name: str) -> tuple[float, float]:
    pair = list(bounds) if isinstance(bounds, Sequence) else []
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not all(_is_number(bound) for bound in pair) or pair[0] > pair[1]:
        raise UsageError(f"{name} is {bounds}; give two numbers, the lesser first")
    return float(pair[0]), float(pair[1])


def _channels(value: Any, name: str, otherwise: str = "") -> list[float]:
    numbers = list(value) if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str) else [value]
    numbers = numbers * _CHANNELS if len(numbers) == 1 else numbers
    if len(numbers) != _CHANNELS or not all(_is_number(number) for number in numbers):
        raise UsageError(f"{name} is {value!r}; give one number or three{' ' * bool(otherwise)}{otherwise}")
    return [float(number) for number in numbers]


def _factors(value: Range | None, name: str) -> tuple[float, float]:
    """The least and the greatest factor around 1."""
    if value is None:
        return 1.0, 1.0
    if _is_number(value) and not isinstance(value, Sequence) and value >= 0:
        return max(0.0, 1.0 - float(value)), 1.0 + float(value)
    low, high = _two(value, f"ColorJitter: {name}")
    if low < 0:
        raise UsageError(f"ColorJitter: {name} is {value}; factors cannot be below zero")
    return low, high


def _turns(value: Range | None) -> tuple[float, float]:
    """The least and the greatest turn of the hue."""
    if value is None:
        return 0.0, 0.0
    single = _is_number(value) and not isinstance(value, Sequence) and value >= 0
    low, high = (-float(value), float(value)) if single else _two(value, "ColorJitter: hue")  # type: ignore[arg-type]
    if not -0.5 <= low <= high <= 0.5:
        raise UsageError(f"ColorJitter: hue is {value}; give turns of at most 0.5, or two of -0.5 to 0.5")
    return low, high
