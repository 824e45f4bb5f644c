"""timm's operations: their sets, and the arguments that magnitudes mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from picstore.arrays import F64, I64
from picstore.train.transforms.operations import Operation

_BLUR = (0.1, 2.0)  # least and greatest deviation in pixels


@dataclass(frozen=True)
class Draws:
    """What the arguments of images depend on, by image.

    Attributes:
        level: float64 (n,), magnitudes / 10.
        sign: float64 (n,), −1 or 1.
        number: float64 (n,), uniform; the same that decides the sign.
        side: float64 (n, 2), pixels across and down.
        most: greatest translation in pixels.
        part: greatest translation as a fraction of the side.
    """

    level: F64
    sign: F64
    number: F64
    side: F64
    most: float
    part: float

    @property
    def factor(self) -> F64:
        """A factor that moves away from 1 as the level increases."""
        away: F64 = np.maximum(0.1, 1 + self.sign * 0.9 * self.level)
        return away


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
    threshold: F64 = np.minimum(256, np.trunc(256 * draws.level))
    return threshold


def _deviation(draws: Draws) -> F64:
    return np.clip(_BLUR[0] + (_BLUR[1] - _BLUR[0]) * draws.level, *_BLUR)


def _random_deviation(draws: Draws) -> F64:
    return _BLUR[0] + (_BLUR[1] * np.clip(draws.level, 0, 1) - _BLUR[0]) * draws.number


# timm's images move by minus its argument.
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
    "GaussianBlur": (Operation.BLUR, _deviation),
    "GaussianBlurRand": (Operation.BLUR, _random_deviation),
}
NAMES = list(LEVELS)


def steps_of(names: I64, draws: Draws) -> tuple[I64, F64]:
    """Operations and arguments, int64 and float64 (n,), of indices in ``NAMES``, −1 for none."""
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

# Sets of operations, with the weights of their chances.
RANDOM = dict.fromkeys((*_PLAIN, *_MOVES, *_GRADED), 1.0)
INCREASING = dict.fromkeys((*_PLAIN, *_MOVES, *(f"{name}Increasing" for name in _GRADED)), 1.0)
AUGMIX = {name: 1.0 for name in INCREASING if name not in ("Invert", "SolarizeAdd")}
THREE = dict.fromkeys(("SolarizeIncreasing", "Desaturate", "GaussianBlur"), 1.0)
WEIGHTED = {
    "weights": {
        "Rotate": 3.0,
        "ShearX": 2.0,
        "ShearY": 2.0,
        "TranslateXRel": 1.0,
        "TranslateYRel": 1.0,
        "ColorIncreasing": 0.25,
        "SharpnessIncreasing": 0.25,
        "AutoContrast": 0.25,
        **dict.fromkeys(
            (
                "SolarizeIncreasing",
                "SolarizeAdd",
                "ContrastIncreasing",
                "BrightnessIncreasing",
                "Equalize",
                "PosterizeIncreasing",
                "Invert",
            ),
            0.05,
        ),
    },
    "3aw": {
        **dict.fromkeys(THREE, 6.0),
        "Rotate": 3.0,
        "ShearX": 2.0,
        "ShearY": 2.0,
        **dict.fromkeys(
            (
                "PosterizeIncreasing",
                "AutoContrast",
                "ColorIncreasing",
                "SharpnessIncreasing",
                "ContrastIncreasing",
                "BrightnessIncreasing",
                "Equalize",
                "Invert",
            ),
            1.0,
        ),
    },
}
