"""Gaussian blur, noise and random erasing, as in ``torchvision.transforms.v2`` on uint8 images."""

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

_TRIES = 10  # number of boxes that RandomErasing tries, as torchvision does, before it gives up and erases nothing
_MAX_TAPS = 1023  # maximum kernel size, which limits the memory of a blur


class GaussianNoise(ColorTransform):
    """Add normal noise, truncated to whole levels, to each value of each channel. Uses 1 random number.

    Args:
        mean, sigma: mean and standard deviation of the noise, as fractions of 255 grey levels; sigma at least 0.
        clip: whether to clip values to 0 … 255; otherwise they wrap around.
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

    An image smaller than the kernel is reflected repeatedly; torchvision rejects it.

    Args:
        kernel_size: number of taps, odd, 1 to 1023; one number for both directions, or (across, down).
        sigma: standard deviation in pixels, above 0; a number, or (minimum, maximum).
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

    Ten pairs of an area (uniform in ``scale`` × the image's area) and a ratio height / width (log-uniform in ``ratio``)
    are drawn. The first box smaller than the image in both directions is placed uniformly; if there is none, nothing is
    erased. Uses 24 random numbers.

    Args:
        p: probability that a box is erased.
        scale: minimum and maximum fraction of the image's area, 0 to 1.
        ratio: minimum and maximum height / width, above 0.
        value: one number for all channels, one for each channel, or ``"random"``. Before ``Normalize``, numbers are
            grey levels, and random values are uniform (torchvision's are standard normals truncated to bytes, mostly
            black). After ``Normalize``, numbers are normalized values, and random values are standard normals.
        inplace: no effect; accepted because torchvision has it.
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
        """Return each image's box to erase, (n, 4): left, top, right, bottom; and whether any try fits, bool (n,)."""
        area = sizes.prod(axis=1)[:, None] * (self._scale[0] + (self._scale[1] - self._scale[0]) * areas)
        low, high = math.log(self._ratio[0]), math.log(self._ratio[1])
        ratio = np.exp(low + (high - low) * ratios)
        tries = np.stack([np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))], axis=2)
        fits = (tries < sizes[:, None, :]).all(axis=2)
        size = np.take_along_axis(tries, fits.argmax(axis=1)[:, None, None], axis=1)[:, 0]
        corner = np.floor(position * (sizes - size + 1))
        return np.concatenate([corner, corner + size], axis=1), fits.max(axis=1) & (size > 0).min(axis=1)


def pixel_keys(numbers: F64) -> U64:
    """Return a key for each image, uint64 (n,), from its random number in [0, 1); the key seeds numbers for pixels."""
    return rng.keys(rng.key(rng.AUGMENT), (numbers * 2.0**53).astype(np.uint64))
