"""Checks of the arguments of transforms, and of integers in any argument.

``name`` is the name of an argument in messages: the transform and its parameter, as "Resize: size". A ``checked_…``
function returns a valid argument in one form, and raises UsageError if the argument is not valid.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from picstore.errors import UsageError
from picstore.kernels import filters
from picstore.train.transforms import opcodes
from picstore.train.transforms.padding_and_edges import BORDERS

Fill: TypeAlias = tuple[int, int, int]
# Name of an interpolation, or member of torchvision's or Pillow's enumeration, or a sequence of these.
Interpolation: TypeAlias = Any
Padding: TypeAlias = "int | Sequence[int]"
Range: TypeAlias = "float | Sequence[float]"
Size: TypeAlias = "int | Sequence[int]"

_CHANNELS = 3
_MAX_SIZE = 1 << 15  # largest side of an output, and largest padding, in pixels
_RANDOM = ("bilinear", "bicubic")  # interpolations from which interpolation="random" draws, as in timm
# Key: code of an interpolation; value: a warp's operand ``opcodes.SAMPLING``. Bicubic is Pillow's, because torchvision
# does not warp tensors by bicubic interpolation.
_SAMPLINGS = {
    filters.NEAREST: opcodes.NEAREST,
    filters.BILINEAR: opcodes.BILINEAR,
    filters.BICUBIC: opcodes.PILLOW_BICUBIC,
}


def name_of(transform: Any) -> str:
    """Return the name of a transform, for error messages."""
    # A user's callable may have an attribute ``name`` that is not a string.
    own = getattr(transform, "name", None)
    return own if isinstance(own, str) else getattr(transform, "__name__", type(transform).__name__)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value)


def checked_integer(value: Any, name: str, least: int | None = None, most: int | None = None) -> int:
    """Return a Python or NumPy integer as int; raise UsageError for other types, bools, or a value out of range."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))
    if not whole or (least is not None and value < least) or (most is not None and value > most):
        bounds = "" if least is None else f" of at least {least:,}" if most is None else f" from {least:,} to {most:,}"
        raise UsageError(f"{name} is {reprlib.repr(value)}; give an integer{bounds}")
    return int(value)


def checked_probability(p: float, transform: str) -> float:
    """Return ``p`` as a float; raise UsageError unless it is a number from 0 to 1."""
    if not is_number(p) or not 0 <= p <= 1:
        raise UsageError(f"{transform}: p is {p}; give a probability, 0 to 1")
    return float(p)


def checked_range(bounds: Any, name: str) -> tuple[float, float]:
    """Return ``bounds`` as (minimum, maximum); a sequence of one number gives that number twice."""
    pair = list(bounds) if isinstance(bounds, Sequence) else []
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not all(is_number(bound) for bound in pair) or pair[0] > pair[1]:
        raise UsageError(f"{name} is {bounds}; give two numbers, the lesser first")
    return float(pair[0]), float(pair[1])


def checked_numbers(values: Any, name: str, counts: tuple[int, ...]) -> tuple[float, ...]:
    """Return a sequence of finite numbers as floats; its length must be one of ``counts``."""
    known = isinstance(values, (tuple, list, np.ndarray)) and len(values) in counts
    if not known or not all(isinstance(v, (int, float, np.number)) and math.isfinite(v) for v in values):
        raise UsageError(f"{name} is {values}; give {' or '.join(map(str, counts))} numbers")
    return tuple(float(v) for v in values)


def checked_angles(degrees: Any, name: str, counts: tuple[int, ...]) -> tuple[float, ...]:
    """Return angles as pairs, minimum and maximum; a single number d stands for the pair (−d, d)."""
    if isinstance(degrees, (int, float, np.number)):
        degrees = (-degrees, degrees)
    angles = checked_numbers(degrees, name, counts)
    if any(low > high for low, high in zip(angles[::2], angles[1::2], strict=True)):
        raise UsageError(f"{name} is {degrees}; give a number that is not negative, or the lesser first")
    return angles


def checked_channels(value: Any, name: str, alternative: str = "") -> list[float]:
    """Return a number for each of red, green and blue; a single number stands for all three.

    ``value`` may be an array, a tensor, or a list of tensors with one number each. ``alternative`` is another permitted
    value, which an error's message names.
    """
    given = value.tolist() if hasattr(value, "tolist") else value
    numbers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    numbers = [number.tolist() if hasattr(number, "tolist") else number for number in numbers]
    numbers = numbers * _CHANNELS if len(numbers) == 1 else numbers
    if len(numbers) != _CHANNELS or not all(is_number(number) for number in numbers):
        raise UsageError(f"{name} is {value!r}; give one number or three{' ' * bool(alternative)}{alternative}")
    return [float(number) for number in numbers]


def checked_fill(fill: Any, transform: str) -> Fill:
    """Return red, green and blue, from a grey level or three levels of 0 to 255; None is black."""
    levels = fill if isinstance(fill, (tuple, list)) else [0 if fill is None else fill]
    whole = all(isinstance(level, (int, float, np.number)) and level in range(256) for level in levels)
    if len(levels) not in (1, 3) or not whole:
        raise UsageError(f"{transform}: fill is {fill}; give a level of 0 to 255, or three: red, green, blue")
    red, green, blue = (int(level) for level in (levels if len(levels) == 3 else levels * 3))
    return red, green, blue


def checked_size(size: Size, transform: str, name: str = "size") -> tuple[int, int]:
    """Return (height, width), integers from 1 to 32768; one integer stands for a square."""
    sides = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    sides = sides * 2 if len(sides) == 1 else sides
    whole = len(sides) == 2 and all(isinstance(side, (int, np.integer)) for side in sides)
    if not whole or not all(0 < side <= _MAX_SIZE for side in sides):
        raise UsageError(f"{transform}: {name} is {size}; give one or two (height, width) integers, 1 to {_MAX_SIZE}")
    return int(sides[0]), int(sides[1])


def checked_padding(padding: Padding, transform: str) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom), 0 to 32768; one integer is for all sides, two for left/right, top/bottom."""
    sides = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,)
    whole = all(isinstance(side, (int, np.integer)) and 0 <= side <= _MAX_SIZE for side in sides)
    if len(sides) not in (1, 2, 4) or not whole:
        raise UsageError(f"{transform}: padding is {padding}; give one, two or four integers, 0 to {_MAX_SIZE}")
    left, top, right, bottom = sides * (4 // len(sides))
    return int(left), int(top), int(right), int(bottom)


def checked_padding_mode(mode: str, transform: str) -> int:
    """Return the code of a padding mode, given by a name in ``padding_and_edges.BORDERS``."""
    if not isinstance(mode, str) or mode not in BORDERS:
        raise UsageError(f"{transform}: padding_mode is {mode!r}; give one of {', '.join(BORDERS)}")
    return BORDERS[mode]


def checked_interpolation(interpolation: Any, transform: str) -> tuple[int, ...]:
    """Return interpolation codes (see ``kernels/filters.py``), of which one is drawn for each image.

    ``interpolation`` is a name, a member of torchvision's or Pillow's enumeration or its number, a sequence of such
    values, or ``"random"`` for bilinear and bicubic.
    """
    given = _RANDOM if interpolation == "random" else interpolation
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    codes = [code for code in map(filters.code_of, several) if code is not None]
    if not codes or len(codes) < len(several):
        raise UsageError(
            f"{transform}: interpolation is {interpolation}; give {', '.join(filters.NAMES)}, a sequence of these, or "
            "'random' for bilinear or bicubic"
        )
    return tuple(codes)


def checked_sampling(interpolation: Any, transform: str) -> int:
    """Return the operand ``opcodes.SAMPLING`` of a warp by nearest, bilinear or bicubic interpolation."""
    code = filters.code_of(interpolation)
    if code not in _SAMPLINGS:
        raise UsageError(f"{transform}: interpolation is {interpolation}; give 'nearest', 'bilinear' or 'bicubic'")
    return _SAMPLINGS[code]
