"""timm's AutoAugment, RandAugment, AugMix and 3-Augment, by its configuration strings, with Pillow's interpolation.

timm differs from torchvision in its operations, in what a magnitude means, and in chances and noise of magnitudes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import UsageError
from picstore.kernels import filters
from picstore.train.transforms import augment_policies, opcodes
from picstore.train.transforms.arguments import checked_fill, checked_interpolation, is_number
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.chain_mixing import DEEPEST, draw_depths, draw_weights, mix_chains
from picstore.train.transforms.color_program import ColorProgram, ColorTransform
from picstore.train.transforms.operations import make_steps
from picstore.train.transforms.timm_levels import AUGMIX, INCREASING, NAMES, RANDOM, THREE, WEIGHTED, Draws, steps_of

_DENOMINATOR = 10.0  # the magnitude of level 1, and the greatest unless "mmax" says otherwise
_UNIFORM = 100.0  # a greater deviation means magnitudes uniform up to the given one
_MAX_STEPS = 100  # bounds programs

_POLICIES = {  # and what "Posterize" means in each
    "original": (augment_policies.IMAGENET, "PosterizeOriginal"),
    "originalr": (augment_policies.IMAGENET, "PosterizeIncreasing"),
    "v0": (augment_policies.EFFICIENTNET, "Posterize"),
    "v0r": (augment_policies.EFFICIENTNET, "PosterizeIncreasing"),
    "3a": (augment_policies.THREE_AUGMENT, "Posterize"),
}
_SAMPLINGS = {
    filters.NEAREST: opcodes.NEAREST,
    filters.BILINEAR: opcodes.PILLOW_BILINEAR,
    filters.BICUBIC: opcodes.PILLOW_BICUBIC,
}
_DEFAULTS = {  # of the sections of each family
    "rand": {"m": 10.0, "n": 2.0, "p": 0.5, "mstd": 0.0, "mmax": _DENOMINATOR, "inc": 0.0},
    "augmix": {"m": 3.0, "w": 3.0, "d": -1.0, "a": 1.0, "b": 0.0, "mstd": math.inf},
    **{family: {"mstd": 0.0} for family in _POLICIES},
}


class TimmAutoAugment(ColorTransform):
    """Augment as timm's ``create_transform(auto_augment=...)``.

    ``"rand-m9-mstd0.5-inc1"`` is RandAugment, ``"augmix-m3-w3"`` AugMix, ``"original-mstd0.5"``, ``"originalr"``,
    ``"v0"`` and ``"v0r"`` are policies of AutoAugment, and ``"3a"`` is 3-Augment; the sections are timm's.

    Uses 6 random numbers for each operation: which one, chance, two for the magnitude, sign, interpolation. The sets
    ``tweights`` and ``t3aw`` use one more for each of their operations, AugMix others for weights and depths as
    :class:`AugMix`. The blur of 3-Augment is a true Gaussian, where Pillow repeats a box.

    Args:
        config: timm's ``auto_augment``.
        img_mean: color outside of the image. timm's ``create_transform`` takes the mean of its normalization.
        translate_const: greatest translation in pixels, of policies that move by pixels.
        translate_pct: greatest translation as a fraction of the side. timm's ``create_transform`` has 0.3 for AugMix.
        interpolation: ``"bilinear"`` or ``"bicubic"``, Pillow's; ``"nearest"``; a sequence of these, of which each
            operation gets one; or ``"random"``, the first two.

    Raises:
        UsageError: ``config`` has a section that picstore does not know, or an argument has another value.
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
        if weighted:  # without repetition: the first of exponential waiting times
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
            random.uniform(1)  # which one: given by the policy
            steps.append(self._step(names[drawn, k], magnitudes[drawn, k], chances[drawn, k], sizes, random))
        return ColorProgram.chain(steps)

    def _step(self, names: I64, magnitude: Any, chance: Any, sizes: I64, random: BatchRandom) -> ColorProgram:
        """One operation for each image: indices in ``NAMES``, and magnitudes and chances, (n,) or one for all."""
        applied, radius, turn, sign, which = random.uniform(5).T
        deviation = self._values["mstd"]
        if deviation == math.inf:
            magnitude = radius * magnitude
        elif deviation > 0:
            magnitude = magnitude + deviation * np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * math.pi * turn)
        level = (
            np.clip(np.broadcast_to(magnitude, sign.shape), 0, self._values.get("mmax", _DENOMINATOR)) / _DENOMINATOR
        )
        draws = Draws(level, np.where(sign > 0.5, -1.0, 1.0), sign, sizes.astype(np.float64), *self._translate)
        operations, arguments = steps_of(np.where(applied <= chance, names, -1), draws)
        sampling = self._samplings[np.floor(which * len(self._samplings)).astype(np.int64)]
        return make_steps(operations, arguments, sizes, sampling=sampling, fill=self._fill)


def _parse(config: str) -> tuple[str, dict[str, float], dict[str, float]]:
    """Family, values of its sections, and its set of operations; UsageError for another configuration."""
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
    """Names, chances and magnitudes, (sub-policies, operations), of a policy."""
    policy, posterize = _POLICIES[family]
    names = [[NAMES.index(posterize if name == "Posterize" else name) for name, _, _ in steps] for steps in policy]
    chances = [[chance for _, chance, _ in steps] for steps in policy]
    magnitudes = [[float(magnitude) for _, _, magnitude in steps] for steps in policy]
    return np.array(names), np.array(chances), np.array(magnitudes)
