"""timm's AutoAugment, RandAugment, AugMix and 3-Augment by configuration strings, with Pillow's interpolation.

timm differs from torchvision in operations, in the arguments of magnitudes, and in chances and noise of magnitudes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.kernels import filters
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import checked_fill, checked_interpolation, is_number
from picstore.train.transforms.augment_operations import EFFICIENTNET, IMAGENET, THREE_AUGMENT, Operation, make_steps
from picstore.train.transforms.auto_augment import DEEPEST, draw_depths, draw_weights, mix_chains
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, ColorTransform

# A level, on which arguments of operations depend, is magnitude / 10. The maximum magnitude is also 10, unless the
# configuration has a section "mmax".
_DENOMINATOR = 10.0
_UNIFORM = 100.0  # If the section "mstd" is above 100, magnitudes are uniform from 0 to "m", not normal around "m".
_MAX_STEPS = 100  # maximum of a configuration's sections "n" and "d" (numbers of operations) and "w" (number of chains)
# Key: timm's name of a policy. Value: the policy, and the key in LEVELS of its "Posterize", which differs by policy.
_POLICIES = {
    "original": (IMAGENET, "PosterizeOriginal"),
    "originalr": (IMAGENET, "PosterizeIncreasing"),
    "v0": (EFFICIENTNET, "Posterize"),
    "v0r": (EFFICIENTNET, "PosterizeIncreasing"),
    "3a": (THREE_AUGMENT, "Posterize"),
}
_SAMPLINGS = {
    filters.NEAREST: opcodes.NEAREST,
    filters.BILINEAR: opcodes.PILLOW_BILINEAR,
    filters.BICUBIC: opcodes.PILLOW_BICUBIC,
}
# For each first word of a configuration, the sections that may follow ("m" is the magnitude), with their defaults.
_DEFAULTS = {
    "rand": {"m": 10.0, "n": 2.0, "p": 0.5, "mstd": 0.0, "mmax": _DENOMINATOR, "inc": 0.0},
    "augmix": {"m": 3.0, "w": 3.0, "d": -1.0, "a": 1.0, "b": 0.0, "mstd": math.inf},
    **{family: {"mstd": 0.0} for family in _POLICIES},
}
_BLUR = (0.1, 2.0)  # minimum and maximum standard deviation of a blur in pixels


@dataclass(frozen=True)
class Draws:
    """Values from which the arguments of one operation on each of n images are computed.

    Attributes:
        level: float64 (n,), magnitude / 10 of the operation.
        sign: float64 (n,), −1 or 1.
        number: float64 (n,), uniform random number from which the sign was drawn.
        side: float64 (n, 2), widths and heights of the images.
        most: maximum translation in pixels, for operations such as "TranslateX".
        part: maximum translation as a fraction of the side, for operations such as "TranslateXRel".
    """

    level: F64
    sign: F64
    number: F64
    side: F64
    most: float
    part: float

    @property
    def factor(self) -> F64:
        """Factor of brightness, contrast and so on, (n,): 1 + sign · 0.9 · level, but at least 0.1."""
        return np.maximum(0.1, 1 + self.sign * 0.9 * self.level)


Level: TypeAlias = Callable[[Draws], F64]


def _none(draws: Draws) -> F64:
    return np.zeros_like(draws.level)


def _slope(draws: Draws) -> F64:
    return draws.sign * 0.3 * draws.level


def _mild_factor(draws: Draws) -> F64:
    return 1.8 * draws.level + 0.1


def _bits(draws: Draws) -> F64:
    return np.trunc(4 * draws.level)


def _threshold(draws: Draws) -> F64:
    return np.minimum(256, np.trunc(256 * draws.level))


def _random_deviation(draws: Draws) -> F64:
    return _BLUR[0] + (_BLUR[1] * np.clip(draws.level, 0, 1) - _BLUR[0]) * draws.number


# By timm's name of an operation, picstore's operation, and the function that computes its argument. Translations are
# negated, because positive ones are to the left and up in timm.
LEVELS: dict[str, tuple[Operation, Level]] = {
    "AutoContrast": (Operation.AUTO_CONTRAST, _none),
    "Equalize": (Operation.EQUALIZE, _none),
    "Invert": (Operation.INVERT, _none),
    "Rotate": (Operation.ROTATE, lambda draws: draws.sign * 30 * draws.level),
    "Posterize": (Operation.POSTERIZE, lambda draws: np.minimum(_bits(draws), 8)),
    "PosterizeIncreasing": (Operation.POSTERIZE, lambda draws: 4 - _bits(draws)),
    "PosterizeOriginal": (Operation.POSTERIZE, lambda draws: np.minimum(4 + _bits(draws), 8)),
    "Solarize": (Operation.SOLARIZE, _threshold),
    "SolarizeIncreasing": (Operation.SOLARIZE, lambda draws: 256 - _threshold(draws)),
    "SolarizeAdd": (Operation.SOLARIZE_ADD, lambda draws: np.minimum(128, np.trunc(110 * draws.level))),
    "Color": (Operation.COLOR, _mild_factor),
    "ColorIncreasing": (Operation.COLOR, lambda draws: draws.factor),
    "Contrast": (Operation.CONTRAST, _mild_factor),
    "ContrastIncreasing": (Operation.CONTRAST, lambda draws: draws.factor),
    "Brightness": (Operation.BRIGHTNESS, _mild_factor),
    "BrightnessIncreasing": (Operation.BRIGHTNESS, lambda draws: draws.factor),
    "Sharpness": (Operation.SHARPNESS, _mild_factor),
    "SharpnessIncreasing": (Operation.SHARPNESS, lambda draws: draws.factor),
    "ShearX": (Operation.SHEAR_X, _slope),
    "ShearY": (Operation.SHEAR_Y, _slope),
    "TranslateX": (Operation.TRANSLATE_X, lambda draws: -draws.sign * draws.level * draws.most),
    "TranslateY": (Operation.TRANSLATE_Y, lambda draws: -draws.sign * draws.level * draws.most),
    "TranslateXRel": (Operation.TRANSLATE_X, lambda draws: -draws.sign * draws.level * draws.part * draws.side[:, 0]),
    "TranslateYRel": (Operation.TRANSLATE_Y, lambda draws: -draws.sign * draws.level * draws.part * draws.side[:, 1]),
    "Desaturate": (Operation.COLOR, lambda draws: 1 - np.clip(0.5 + 0.5 * draws.level, 0.5, 1)),
    "GaussianBlur": (Operation.BLUR, lambda draws: np.clip(_BLUR[0] + (_BLUR[1] - _BLUR[0]) * draws.level, *_BLUR)),
    "GaussianBlurRand": (Operation.BLUR, _random_deviation),
}
NAMES = list(LEVELS)


def steps_of(names: I64, draws: Draws) -> tuple[I64, F64]:
    """Return an ``Operation`` for each of n images, int64 (n,), and its argument, float64 (n,), from ``draws``.

    ``names``, int64 (n,), are the operations' indices in ``NAMES``; −1 stands for the identity.
    """
    operations, arguments = np.full(len(names), int(Operation.IDENTITY)), np.zeros(len(names))
    for number in np.unique(names[names >= 0]).tolist():
        operation, level = LEVELS[NAMES[number]]
        chosen = names == number
        operations[chosen] = operation
        arguments[chosen] = level(draws)[chosen]
    return operations, arguments


_PLAIN = ("AutoContrast", "Equalize", "Invert", "Rotate", "SolarizeAdd")
_MOVES = ("ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
_GRADED = ("Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness")
# Sets from which operations are drawn. Key: timm's name of the operation; value: the weight with which it is drawn.
RANDOM = dict.fromkeys((*_PLAIN, *_MOVES, *_GRADED), 1.0)
INCREASING = dict.fromkeys((*_PLAIN, *_MOVES, *(f"{name}Increasing" for name in _GRADED)), 1.0)
AUGMIX = {name: 1.0 for name in INCREASING if name not in ("Invert", "SolarizeAdd")}
THREE = dict.fromkeys(("SolarizeIncreasing", "Desaturate", "GaussianBlur"), 1.0)
# Sets from which operations are drawn with unequal weights. Key: timm's name of the set; value: weights by operation.
WEIGHTED: dict[str, dict[str, float]] = {
    name: {operation: weight for weight, operations in groups.items() for operation in operations.split()}
    for name, groups in {
        "weights": {
            3.0: "Rotate",
            2.0: "ShearX ShearY",
            1.0: "TranslateXRel TranslateYRel",
            0.25: "ColorIncreasing SharpnessIncreasing AutoContrast",
            0.05: "SolarizeIncreasing SolarizeAdd ContrastIncreasing BrightnessIncreasing Equalize PosterizeIncreasing "
            "Invert",
        },
        "3aw": {
            6.0: "SolarizeIncreasing Desaturate GaussianBlur",
            3.0: "Rotate",
            2.0: "ShearX ShearY",
            1.0: "PosterizeIncreasing AutoContrast ColorIncreasing SharpnessIncreasing ContrastIncreasing "
            "BrightnessIncreasing Equalize Invert",
        },
    }.items()
}


class TimmAutoAugment(ColorTransform):
    """Augment as timm's ``create_transform(auto_augment=...)`` does.

    Uses 6 random numbers for each operation: the operation, chance, two for the magnitude, sign, interpolation. The
    sets of operations ``tweights`` and ``t3aw`` use one more number for each of their operations. AugMix also uses the
    numbers for weights and depths of :class:`AugMix`. 3-Augment blurs by a true Gaussian, not by Pillow's box blurs.

    Args:
        config: timm's ``auto_augment``: ``"rand-m9-mstd0.5-inc1"`` for RandAugment, ``"augmix-m3-w3"`` for AugMix,
            ``"3a"`` for 3-Augment; ``"original-mstd0.5"``, ``"originalr"``, ``"v0"`` or ``"v0r"`` for AutoAugment.
        img_mean: color outside of the image. timm's ``create_transform`` takes the mean of its normalization.
        translate_const: maximum translation in pixels, for policies that move by pixels.
        translate_pct: maximum translation as a fraction of the side. timm's ``create_transform`` has 0.3 for AugMix.
        interpolation: ``"nearest"``, or Pillow's ``"bilinear"`` or ``"bicubic"``; a sequence, from which one is drawn
            for each operation; or ``"random"`` for bilinear or bicubic.
    """

    moves_pixels = True

    def __init__(
        self,
        config: str,
        *,
        img_mean: int | Sequence[int] = (128, 128, 128),
        translate_const: float = 250,
        translate_pct: float = 0.45,
        interpolation: Any = "random",
    ) -> None:
        name = "TimmAutoAugment"
        self._fill = checked_fill(img_mean, f"{name}: img_mean")
        if not (is_number(translate_const) and is_number(translate_pct)):
            given = f"translate_const is {translate_const}, translate_pct {translate_pct}"
            raise UsageError(f"{name}: {given}; give numbers")
        self._translate = float(translate_const), float(translate_pct)
        codes = checked_interpolation(interpolation, name)
        if not _SAMPLINGS.keys() >= set(codes):
            raise UsageError(f"{name}: interpolation is {interpolation}; give nearest, bilinear, bicubic or random")
        self._samplings = np.array([_SAMPLINGS[code] for code in codes])
        self._family, self._values, self._set = _parse(config)
        if self._family == "rand" and self._values["mstd"] > _UNIFORM:
            self._values["mstd"] = math.inf
        if self._family in _POLICIES:
            self._policy = _policy_arrays(self._family)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        if self._family == "rand":
            return self._rand_augment(sizes, random)
        return self._augmix(sizes, random) if self._family == "augmix" else self._auto_augment(sizes, random)

    def _rand_augment(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        count, layers = len(sizes), int(self._values["n"])
        names = np.array([NAMES.index(name) for name in self._set])
        weights = np.array(list(self._set.values()))
        weighted = (weights != weights[0]).any()
        if weighted:
            # Sort operations by exponential random number / weight: the first ones are different, drawn by weight.
            waiting = -np.log1p(-random.uniform(len(names))) / weights
            order = np.argsort(waiting, axis=1, kind="stable")
        steps = [ColorProgram.from_step(opcodes.NOTHING, [], count=count)]
        for k in range(layers):
            number = random.uniform(1)[:, 0]
            index = order[:, k] if weighted else np.floor(number * len(names)).astype(np.int64)
            steps.append(self._step(names[index], self._values["m"], self._values["p"], sizes, random))
        return ColorProgram.chain(steps)

    def _augmix(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        names = np.array([NAMES.index(name) for name in AUGMIX])
        depth, width = int(self._values["d"]), int(self._values["w"])
        weights = draw_weights(self._values["a"], width, random)
        chains = []
        for _ in range(width):
            depths, chain = draw_depths(depth, random), []
            for k in range(depth if depth > 0 else DEEPEST):
                chosen = names[np.floor(random.uniform(1)[:, 0] * len(names)).astype(np.int64)]
                chain.append(self._step(np.where(k < depths, chosen, -1), self._values["m"], 1.0, sizes, random))
            chains.append(chain)
        return mix_chains(weights, chains)

    def _auto_augment(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        names, chances, magnitudes = self._policy
        drawn = np.floor(random.uniform(1)[:, 0] * len(names)).astype(np.int64)
        steps = []
        for k in range(names.shape[1]):
            # Skip the random number that would choose the operation, which the policy names. ``_step`` uses 5 more.
            random.uniform(1)
            steps.append(self._step(names[drawn, k], magnitudes[drawn, k], chances[drawn, k], sizes, random))
        return ColorProgram.chain(steps)

    def _step(self, names: I64, magnitude: Any, chance: Any, sizes: I64, random: BatchRandom) -> ColorProgram:
        """Return a program that applies operation ``NAMES[names[i]]`` to image i with probability ``chance``."""
        applied, radius, turn, sign, which = random.uniform(5).T
        deviation = self._values["mstd"]
        if deviation == math.inf:
            magnitude = radius * magnitude
        elif deviation > 0:
            magnitude = magnitude + deviation * np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * turn)
        most = self._values.get("mmax", _DENOMINATOR)
        level = np.clip(np.broadcast_to(magnitude, sign.shape), 0, most) / _DENOMINATOR
        draws = Draws(level, np.where(sign > 0.5, -1.0, 1.0), sign, sizes.astype(np.float64), *self._translate)
        operations, arguments = steps_of(np.where(applied <= chance, names, -1), draws)
        sampling = self._samplings[np.floor(which * len(self._samplings)).astype(np.int64)]
        return make_steps(operations, arguments, sizes, sampling=sampling, fill=self._fill)


def _parse(config: str) -> tuple[str, dict[str, float], dict[str, float]]:
    """Parse a configuration such as "rand-m9-inc1" into first word, values by section, and weights by operation.

    Raise UsageError if a section is wrong.
    """
    family, *sections = str(config).split("-")
    wrong = f"TimmAutoAugment: config is {config!r}"
    if family not in _DEFAULTS:
        raise UsageError(f"{wrong}; give one that begins with {', '.join(_DEFAULTS)}")
    values, chosen = dict(_DEFAULTS[family]), ""
    for section in sections:
        if family == "rand" and section.startswith("t"):
            chosen = section[1:]
            continue
        match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", section)
        if match is None or match[1] not in values:
            raise UsageError(f"{wrong} with the section {section!r}; give sections of {', '.join(values)} and a number")
        values[match[1]] = float(match[2])
    sets = {"": INCREASING if values.get("inc") else RANDOM, "3a": THREE, **WEIGHTED}
    if chosen not in sets:
        raise UsageError(f"{wrong} with the set {chosen!r}; give one of {', '.join(sets)[2:]}")
    most = len(sets[chosen]) if chosen in WEIGHTED else _MAX_STEPS
    if any(values[name] > most for name in "nwd" if name in values) or not 0 <= values.get("p", 1) <= 1:
        raise UsageError(
            f"{wrong}; give a chance p of 0 to 1, and no more operations than the set has, or {_MAX_STEPS}"
        )
    if family == "augmix" and (values["w"] < 1 or values["a"] <= 0):
        raise UsageError(f"{wrong}; give a width w of at least 1 and a above 0")
    return family, values, sets[chosen]


def _policy_arrays(family: str) -> tuple[I64, F64, F64]:
    """Return a policy as operations' indices in ``NAMES``, chances and magnitudes, each (sub-policies, operations)."""
    policy, posterize = _POLICIES[family]
    names = [[NAMES.index(posterize if name == "Posterize" else name) for name, _, _ in steps] for steps in policy]
    chances = [[chance for _, chance, _ in steps] for steps in policy]
    magnitudes = [[float(magnitude) for _, _, magnitude in steps] for steps in policy]
    return np.array(names), np.array(chances), np.array(magnitudes)
