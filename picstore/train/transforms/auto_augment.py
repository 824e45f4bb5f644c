"""AutoAugment, RandAugment, TrivialAugment and AugMix, as in ``torchvision.transforms.v2`` on uint8 tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import checked_integer, checked_sampling, is_number
from picstore.train.transforms.augment_operations import CIFAR10, FACTORS, IMAGENET, SVHN, WARPS, Operation, make_steps
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, ColorTransform
from picstore.train.transforms.distort import sampling_fill

_POLICY_BINS = 10  # number of magnitudes of an operation in AutoAugment and AugMix
_MAX_STEPS = 100  # maximum ``num_ops``, ``mixture_width`` and ``chain_depth``
_MAX_BINS = 1 << 20
_POLICIES = {"imagenet": IMAGENET, "cifar10": CIFAR10, "svhn": SVHN}
_BY_NAME = {operation.name.title().replace("_", ""): operation for operation in Operation}
_TRANSLATIONS = [Operation.TRANSLATE_X, Operation.TRANSLATE_Y]
_SIGNED = np.isin(np.arange(len(Operation)), [*WARPS, *FACTORS])
DEEPEST = 3  # largest number of operations in an AugMix chain whose number of operations is drawn
_TRIES = 8  # candidates for a gamma variate, each accepted with probability 0.95 or more; the first accepted is used


class _Magnitudes:
    """Arguments of an operation at n magnitudes: ``torch.linspace(0, limit, n)``, with the operation's limit.

    Args:
        shear: maximum slope.
        rotate: maximum angle in degrees.
        factor: maximum difference from 1 of a factor, such as of brightness.
        translate: maximum translation, below 1 as a fraction of the side, else in pixels.
        bits: numbers of bits that posterizing keeps at the smallest and at the largest magnitude.
    """

    def __init__(self, *, shear: float, translate: float, rotate: float, factor: float, bits: tuple[int, int]) -> None:
        self._limits = np.zeros(len(Operation))
        self._limits[[Operation.SHEAR_X, Operation.SHEAR_Y]] = shear
        self._limits[_TRANSLATIONS] = translate
        self._limits[Operation.ROTATE] = rotate
        self._limits[FACTORS] = factor
        self._bits = bits

    def arguments(self, operations: I64, bins: npt.ArrayLike, count: int, negative: Any, sizes: I64) -> F64:
        """Return the argument of each image's operation, float64 (n,).

        Args:
            bins: index of each operation's magnitude, (n,) or one for all images.
            count: number of magnitudes.
            negative: whether to negate the argument of an operation with two directions, such as a rotation.
        """
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
        return np.where(operations == Operation.SOLARIZE, thresholds, values)


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

    Uses 2 random numbers for each operation: operation, sign.

    Args:
        num_ops: number of operations, 0 to 100.
        magnitude: index of the magnitude, 0 to ``num_magnitude_bins`` − 1.
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation: ``"nearest"``, ``"bilinear"``, or ``"bicubic"`` as Pillow computes it.
        fill: color outside of the image: grey level 0 to 255, or (red, green, blue); None is black.
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
        self._bins = checked_integer(num_magnitude_bins, "RandAugment: num_magnitude_bins", 2, _MAX_BINS)
        self._bin = checked_integer(magnitude, "RandAugment: magnitude", 0, self._bins - 1)
        self._count = checked_integer(num_ops, "RandAugment: num_ops", 0, _MAX_STEPS)

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
        num_magnitude_bins: number of magnitudes, at least 2.
        interpolation, fill: see :class:`RandAugment`.
    """

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: Any = None) -> None:
        super().__init__(interpolation, fill)
        self._bins = checked_integer(num_magnitude_bins, "TrivialAugmentWide: num_magnitude_bins", 2, _MAX_BINS)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        which, level, sign = random.uniform(3).T
        operations = _chosen(_ALL_AND_IDENTITY, which)
        bins = _chosen(np.arange(self._bins), level)
        arguments = _WIDE.arguments(operations, bins, self._bins, sign <= 0.5, sizes)
        return make_steps(operations, arguments, sizes, **self._warp)


class AutoAugment(_AutoAugmentBase):
    """Apply the two operations of a random sub-policy (Cubuk et al., "AutoAugment", CVPR 2019).

    Uses 5 random numbers: the sub-policy, and chance and sign of each operation.

    Args:
        policy: ``"imagenet"``, ``"cifar10"`` or ``"svhn"``, or the member of torchvision's enumeration with that value.
        interpolation, fill: see :class:`RandAugment`.
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
    """Average the image with the results of chains of random operations (Hendrycks et al., "AugMix", ICLR 2020).

    Uses k × (2 + ``mixture_width``) random numbers for the weights of the average, with k = 1 if ``alpha`` is 1, and
    k = 25 otherwise. Each chain uses 1 more for its depth, and 3 for each operation that it may have.

    Args:
        severity: number of magnitudes to draw from, 1 to 10, beginning with the smallest.
        mixture_width: number of chains, 1 to 100.
        chain_depth: number of operations of a chain; if below 1, the number is drawn from 1 to 3.
        alpha: parameter of the beta and Dirichlet distributions of the weights, above 0.
        all_ops: whether brightness, color, contrast and sharpness are among the operations.
        interpolation, fill: see :class:`RandAugment`.
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
        self._severity = checked_integer(severity, "AugMix: severity", 1, _POLICY_BINS)
        self._width = checked_integer(mixture_width, "AugMix: mixture_width", 1, _MAX_STEPS)
        self._depth = checked_integer(chain_depth, "AugMix: chain_depth", -_MAX_STEPS, _MAX_STEPS)
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


def mix_chains(weights: F64, chains: Sequence[Sequence[ColorProgram]]) -> ColorProgram:
    """Return a program that averages each image with the results of k chains of steps, each applied to the image.

    Args:
        weights: float64 (n, k + 1), weight of each image, then of the results of its k chains.
        chains: k lists of programs of one step, in the order of their application.
    """
    count = len(weights)
    programs = [ColorProgram.from_step(opcodes.MIX, [weights[:, 0], opcodes.MIX_FIRST], count=count)]
    for k, chain in enumerate(chains, 1):
        place = opcodes.MIX_LAST if k == len(chains) else opcodes.MIX_NEXT
        programs += [*chain, ColorProgram.from_step(opcodes.MIX, [weights[:, k], place], count=count)]
    return ColorProgram.chain(programs)


def draw_depths(depth: int, random: BatchRandom) -> I64:
    """Return each image's number of steps in a chain, int64 (n,): ``depth``, or 1 to 3 at random for ``depth`` < 1."""
    drawn = 1 + np.floor(DEEPEST * random.uniform(1)[:, 0]).astype(np.int64)
    return np.full_like(drawn, depth) if depth > 0 else drawn


def draw_weights(alpha: float, chains: int, random: BatchRandom) -> F64:
    """Return the weights in AugMix's average, float64 (n, 1 + chains): each image's own weight, then its chains'.

    The image's weight has a beta distribution; a Dirichlet distribution divides the rest. Both have the parameter
    ``alpha``. Uses 2 + ``chains`` random numbers if ``alpha`` is 1, otherwise 25 times as many.
    """
    share, parts = _dirichlet(alpha, 2, random), _dirichlet(alpha, chains, random)
    return np.concatenate([share[:, :1], share[:, 1:] * parts], axis=1)


def _dirichlet(alpha: float, count: int, random: BatchRandom) -> F64:
    """Draw ``count`` weights of sum 1 for each image from a symmetric Dirichlet distribution: float64 (n, count)."""
    variates = np.stack([_gamma(alpha, random) for _ in range(count)], axis=1)
    shares: F64 = variates / variates.sum(axis=1, keepdims=True)
    return shares


def _gamma(alpha: float, random: BatchRandom) -> F64:
    """Draw a gamma variate of shape ``alpha`` for each image, float64 (n,), by Marsaglia and Tsang's method (2000)."""
    if alpha == 1:
        return -np.log1p(-random.uniform(1)[:, 0])
    numbers = random.uniform(3 * _TRIES + 1)
    radius, turn, chance = numbers[:, :-1].reshape(-1, 3, _TRIES).transpose(1, 0, 2)
    normal = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * turn)
    shape = (alpha + 1 if alpha < 1 else alpha) - 1 / 3
    cube = (1 + normal / math.sqrt(9 * shape)) ** 3
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = (cube > 0) & (np.log(chance) < normal**2 / 2 + shape * (1 - cube + np.log(cube)))
    variates = shape * np.take_along_axis(cube, taken.argmax(axis=1)[:, None], axis=1)[:, 0]
    return variates * (1 - numbers[:, -1]) ** (1 / alpha) if alpha < 1 else variates


def _chosen(values: I64, numbers: F64) -> I64:
    """Return int64 (n,): for each of n random numbers in [0, 1), one of ``values``, all with equal probability."""
    return values[np.floor(numbers * len(values)).astype(np.int64)]


def _linspace(start: F64, end: F64, bins: I64, count: int) -> F64:
    """Return the elements with index ``bins`` of ``torch.linspace(start, end, count)``, as float64 (n,).

    The step is rounded to float32, and each element too, after a fused multiplication and addition, as in torch.
    """
    step = ((end.astype(np.float32) - start.astype(np.float32)) / np.float32(count - 1)).astype(np.float64)
    upwards, downwards = start + step * bins, end.astype(np.float32) - step * (count - 1 - bins)
    values: F64 = np.where(bins < count // 2, upwards, downwards).astype(np.float32).astype(np.float64)
    return values
