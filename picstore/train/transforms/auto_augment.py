"""AutoAugment, RandAugment, TrivialAugment and AugMix, as in ``torchvision.transforms.v2`` on uint8 tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms import augment_policies
from picstore.train.transforms.arguments import checked_sampling, is_number
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.chain_mixing import DEEPEST, draw_depths, draw_weights, mix_chains
from picstore.train.transforms.color_program import ColorProgram, ColorTransform
from picstore.train.transforms.distort import sampling_fill
from picstore.train.transforms.operations import FACTORS, WARPS, Operation, make_steps

_POLICY_BINS = 10  # of AutoAugment and AugMix
_MAX_STEPS = 100  # bounds programs

_POLICIES = {
    "imagenet": augment_policies.IMAGENET,
    "cifar10": augment_policies.CIFAR10,
    "svhn": augment_policies.SVHN,
}
_BY_NAME = {operation.name.title().replace("_", ""): operation for operation in Operation}

_TRANSLATIONS = [Operation.TRANSLATE_X, Operation.TRANSLATE_Y]
_SIGNED = np.isin(np.arange(len(Operation)), [*WARPS, *FACTORS])


class _Magnitudes:
    """Arguments of operations by the number of a bin: ``torch.linspace`` from none to the greatest, in float32.

    Args:
        shear, rotate, factor: greatest slope, degrees, and distance of a factor from 1.
        translate: greatest translation, as a fraction of the side, or in pixels from 1 on.
        bits: that posterizing keeps in the first bin and in the last one.
    """

    def __init__(self, *, shear: float, translate: float, rotate: float, factor: float, bits: tuple[int, int]) -> None:
        self._limits = np.zeros(len(Operation))
        self._limits[[Operation.SHEAR_X, Operation.SHEAR_Y]] = shear
        self._limits[_TRANSLATIONS] = translate
        self._limits[Operation.ROTATE] = rotate
        self._limits[FACTORS] = factor
        self._bits = bits

    def arguments(self, operations: I64, bins: npt.ArrayLike, count: int, negative: Any, sizes: I64) -> F64:
        """Arguments float64 (n,), of the bin's number of ``count`` and whether to negate it, (n,) or one for all."""
        bins, limits = np.broadcast_to(bins, operations.shape), self._limits[operations]
        for operation, side in zip(_TRANSLATIONS, sizes.T, strict=True):
            if self._limits[operation] < 1:
                limits = np.where(operations == operation, limits * side, limits)
        values = _linspace(np.zeros_like(limits), limits, bins, count)
        values = np.where(negative & _SIGNED[operations], -values, values)
        values = np.where(np.isin(operations, FACTORS), 1 + values, values)
        values = np.where(np.isin(operations, _TRANSLATIONS), np.trunc(values), values)
        first, last = self._bits
        bits = np.rint(np.float32(first) - bins.astype(np.float32) / np.float32((count - 1) / (first - last)))
        thresholds = 255 * _linspace(np.ones_like(limits), np.zeros_like(limits), bins, count)
        values = np.where(operations == Operation.POSTERIZE, bits, values)
        arguments: F64 = np.where(operations == Operation.SOLARIZE, thresholds, values)
        return arguments


_NARROW = _Magnitudes(shear=0.3, translate=150 / 331, rotate=30, factor=0.9, bits=(8, 4))
_WIDE = _Magnitudes(shear=0.99, translate=32, rotate=135, factor=0.99, bits=(8, 2))
_MIXED = _Magnitudes(shear=0.3, translate=1 / 3, rotate=30, factor=0.9, bits=(4, 0))

_BASIC = np.array(
    [*WARPS, Operation.POSTERIZE, Operation.SOLARIZE, Operation.AUTO_CONTRAST, Operation.EQUALIZE], np.int64
)
_ALL = np.concatenate([_BASIC, FACTORS])
_ALL_AND_IDENTITY = np.concatenate([[Operation.IDENTITY], _ALL])


class _AutoAugmentBase(ColorTransform):
    moves_pixels = True

    def __init__(self, interpolation: Any, fill: Any) -> None:
        name = type(self).__name__
        self._warp: Mapping[str, Any] = {
            "sampling": checked_sampling(interpolation, name),
            "fill": sampling_fill(fill, name),
        }


class RandAugment(_AutoAugmentBase):
    """Apply ``num_ops`` random operations of one magnitude (Cubuk et al., "RandAugment", 2019).

    Uses 2 random numbers for each operation: which one, and the sign of its magnitude.

    Args:
        num_ops: operations.
        magnitude: number of the bin of magnitudes, from 0.
        num_magnitude_bins: bins, at least 2.
        interpolation: ``"nearest"``, ``"bilinear"``, or ``"bicubic"``, which is Pillow's.
        fill: color outside of the image: grey level 0 to 255, or (red, green, blue); None is black.

    Raises:
        UsageError: an argument has another value.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: Any = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self._bins = _checked_integer(num_magnitude_bins, "RandAugment: num_magnitude_bins", 2)
        self._bin = _checked_integer(magnitude, "RandAugment: magnitude", 0, self._bins - 1)
        self._count = _checked_integer(num_ops, "RandAugment: num_ops", 0, _MAX_STEPS)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        steps = [ColorProgram.from_step(0, [], count=len(sizes))]
        for _ in range(self._count):
            which, sign = random.uniform(2).T
            operations = _chosen(_ALL_AND_IDENTITY, which)
            arguments = _NARROW.arguments(operations, self._bin, self._bins, sign <= 0.5, sizes)
            steps.append(make_steps(operations, arguments, sizes, **self._warp))
        return ColorProgram.chain(steps)


class TrivialAugmentWide(_AutoAugmentBase):
    """Apply one random operation of a random magnitude (Müller and Hutter, "TrivialAugment", ICCV 2021).

    Uses 3 random numbers: operation, magnitude, sign.

    Args:
        num_magnitude_bins: magnitudes, at least 2.
        interpolation, fill: see :class:`RandAugment`.

    Raises:
        UsageError: an argument has another value.
    """

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: Any = None) -> None:
        super().__init__(interpolation, fill)
        self._bins = _checked_integer(num_magnitude_bins, "TrivialAugmentWide: num_magnitude_bins", 2)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        which, level, sign = random.uniform(3).T
        operations = _chosen(_ALL_AND_IDENTITY, which)
        bins = _chosen(np.arange(self._bins), level)
        arguments = _WIDE.arguments(operations, bins, self._bins, sign <= 0.5, sizes)
        return make_steps(operations, arguments, sizes, **self._warp)


class AutoAugment(_AutoAugmentBase):
    """Apply the two operations of a random sub-policy (Cubuk et al., "AutoAugment", CVPR 2019).

    Uses 5 random numbers: sub-policy, and chance and sign of each operation.

    Args:
        policy: ``"imagenet"``, ``"cifar10"`` or ``"svhn"``, or torchvision's member of that value.
        interpolation, fill: see :class:`RandAugment`.

    Raises:
        UsageError: an argument has another value.
    """

    def __init__(self, policy: Any = "imagenet", interpolation: Any = "nearest", fill: Any = None) -> None:
        super().__init__(interpolation, fill)
        name = getattr(policy, "value", policy)
        if not isinstance(name, str) or name not in _POLICIES:
            raise UsageError(f"AutoAugment: policy is {policy!r}; give one of {', '.join(_POLICIES)}")
        pairs = _POLICIES[name]
        self._operations = np.array([[_BY_NAME[name] for name, _, _ in pair] for pair in pairs])
        self._chances = np.array([[chance for _, chance, _ in pair] for pair in pairs])
        self._bins = np.array([[magnitude for _, _, magnitude in pair] for pair in pairs])

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        numbers = random.uniform(5)
        drawn = _chosen(np.arange(len(self._bins)), numbers[:, 0])
        steps = []
        for k in range(2):
            chance, sign = numbers[:, 1 + 2 * k], numbers[:, 2 + 2 * k]
            applied = chance <= self._chances[drawn, k]
            operations = np.where(applied, self._operations[drawn, k], Operation.IDENTITY)
            bins = self._bins[drawn, k]
            arguments = _NARROW.arguments(operations, bins, _POLICY_BINS, sign <= 0.5, sizes)
            steps.append(make_steps(operations, arguments, sizes, **self._warp))
        return ColorProgram.chain(steps)


class AugMix(_AutoAugmentBase):
    """Mix the image with chains of random operations on it (Hendrycks et al., "AugMix", ICLR 2020).

    Weights are of Dirichlet distributions. Uses, with k = 1, or 25 if ``alpha`` is not 1, k × (2 + ``mixture_width``)
    random numbers for weights, and for each chain one for its depth and 3 for each operation that it can have.

    Args:
        severity: number of magnitudes to choose from, 1 to 10, from the least on.
        mixture_width: chains.
        chain_depth: operations of a chain; below 1 it is drawn from 1 to 3.
        alpha: parameter of the distributions.
        all_ops: choose also from brightness, color, contrast and sharpness.
        interpolation, fill: see :class:`RandAugment`.

    Raises:
        UsageError: an argument has another value.
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: Any = "bilinear",
        fill: Any = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self._severity = _checked_integer(severity, "AugMix: severity", 1, _POLICY_BINS)
        self._width = _checked_integer(mixture_width, "AugMix: mixture_width", 1, _MAX_STEPS)
        self._depth = _checked_integer(chain_depth, "AugMix: chain_depth", -_MAX_STEPS, _MAX_STEPS)
        if not is_number(alpha) or alpha <= 0:
            raise UsageError(f"AugMix: alpha is {alpha}; give a number above 0")
        self._alpha = float(alpha)
        self._operations = _ALL if all_ops else _BASIC

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        weights = draw_weights(self._alpha, self._width, random)
        chains = []
        for _ in range(self._width):
            depth = draw_depths(self._depth, random)
            chain = []
            for k in range(self._depth if self._depth > 0 else DEEPEST):
                which, level, sign = random.uniform(3).T
                operations = np.where(k < depth, _chosen(self._operations, which), Operation.IDENTITY)
                bins = _chosen(np.arange(self._severity), level)
                arguments = _MIXED.arguments(operations, bins, _POLICY_BINS, sign <= 0.5, sizes)
                chain.append(make_steps(operations, arguments, sizes, **self._warp))
            chains.append(chain)
        return mix_chains(weights, chains)


def _chosen(values: I64, numbers: F64) -> I64:
    """Elements of an array by uniform numbers (n,), all alike."""
    chosen: I64 = values[np.floor(numbers * len(values)).astype(np.int64)]
    return chosen


def _linspace(start: F64, end: F64, bins: I64, count: int) -> F64:
    """Element ``bins`` of ``torch.linspace(start, end, count)``: float64 (n,) of float32 values.

    torch rounds the step to float32, and each element after a fused multiplication and addition.
    """
    step = ((end.astype(np.float32) - start.astype(np.float32)) / np.float32(count - 1)).astype(np.float64)
    upwards, downwards = start + step * bins, end.astype(np.float32) - step * (count - 1 - bins)
    values: F64 = np.where(bins < count // 2, upwards, downwards).astype(np.float32).astype(np.float64)
    return values


def _checked_integer(value: Any, name: str, least: int, most: int = 1 << 20) -> int:
    """Return an integer; UsageError unless it is one in a range."""
    if not isinstance(value, (int, np.integer)) or not least <= value <= most:
        raise UsageError(f"{name} is {value}; give an integer of {least} to {most}")
    return int(value)
