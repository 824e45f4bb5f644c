"""Color programs: the steps between resampling and the finished batch, for all images of a batch at once.

A list of color transforms becomes a table of opcodes and operands, with a row for each image. Names, parameters and
meaning follow ``torchvision.transforms.v2`` on uint8 tensors. ``train/cpu/run_color.py`` and
``train/cuda/gpu_color.py`` run the programs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64, U64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import name_of
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.cached_property import cached_property
from picstore.train.transforms.constructed import Value

_IDENTITY = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)  # means and standard deviations with which NORMALIZE changes nothing


@dataclass(frozen=True, eq=False)
class ColorProgram:
    """Steps that change the colors of n images: k steps for each image; steps that do nothing come last.

    Attributes:
        opcode: int64 (n, k), operation of each step, see ``opcodes.py``. ``compose_color`` makes one ``NORMALIZE`` for
            each image.
        operands: float64 (n, k, 12), each step's operands, padded with zeros.
        key: uint64 (n, k), seed from which each step draws random numbers for pixels.
    """

    opcode: I64
    operands: F64
    key: U64

    @classmethod
    def from_step(
        cls, opcode: npt.ArrayLike, operands: Sequence[npt.ArrayLike], *, key: Any = 0, count: int
    ) -> ColorProgram:
        """Return a program of one step for ``count`` images; opcode, key, operands are numbers or arrays (count,)."""
        table = np.zeros((count, 1, opcodes.OPERANDS))
        for k, numbers in enumerate(operands):
            table[:, 0, k] = numbers
        column = np.broadcast_to(np.asarray(opcode, dtype=np.int64), (count,))[:, None]
        return cls(column, table, np.broadcast_to(np.asarray(key, dtype=np.uint64), (count,))[:, None])

    @classmethod
    def chain(cls, programs: Sequence[ColorProgram]) -> ColorProgram:
        """Return one program that has the steps of all ``programs`` in turn, which are for the same n images."""
        opcode, operands, key = (
            np.concatenate([getattr(program, name) for program in programs], axis=1)
            for name in ("opcode", "operands", "key")
        )
        order = np.argsort(opcode == opcodes.NOTHING, axis=1, kind="stable")
        opcode = np.take_along_axis(opcode, order, axis=1)
        used = int((opcode != opcodes.NOTHING).sum(axis=1).max(initial=1))
        operands = np.take_along_axis(operands, order[:, :, None], axis=1)
        key = np.take_along_axis(key, order, axis=1)
        return cls(*(np.ascontiguousarray(array[:, :used]) for array in (opcode, operands, key)))

    @classmethod
    def identity(cls, count: int) -> ColorProgram:
        """Return a program that leaves ``count`` images of bytes unchanged."""
        opcode = np.full((count, 1), opcodes.NORMALIZE)
        operands = np.zeros((count, 1, opcodes.OPERANDS))
        operands[:, 0, : len(_IDENTITY)] = _IDENTITY
        return cls(opcode, operands, np.zeros((count, 1), np.uint64))

    @classmethod
    def concatenate(cls, programs: Sequence[ColorProgram], order: I64) -> ColorProgram:
        """Concatenate programs for different images; image i of the result is image order[i] of the concatenation."""
        width = max(program.opcode.shape[1] for program in programs)
        concatenated = []
        for name in ("opcode", "operands", "key"):
            arrays = [getattr(program, name) for program in programs]
            padded = [np.zeros((len(array), width, *array.shape[2:]), array.dtype) for array in arrays]
            for target, array in zip(padded, arrays, strict=True):
                target[:, : array.shape[1]] = array
            concatenated.append(np.ascontiguousarray(np.concatenate(padded)[order]))
        return cls(*concatenated)

    @property
    def empty(self) -> bool:
        """Whether the program has no step but ``NORMALIZE``, and so leaves images of bytes unchanged."""
        return bool(self.opcode.shape[1] <= 1)

    def describe(self, row: int) -> list[str]:
        """Describe in words the color steps of image ``row`` of the program, except its normalization."""
        steps = zip(self.opcode[row].tolist(), self.operands[row].tolist(), strict=True)
        return [words for opcode, operands in steps if (words := opcodes.describe_step(opcode, operands))]

    def normalization(self, row: int) -> tuple[F64, F64]:
        """Return the means and standard deviations of image ``row``, float64 (3,) each; 0 and 1 if not normalized."""
        found = np.flatnonzero(self.opcode[row] == opcodes.NORMALIZE)
        operands = self.operands[row, found[-1]] if len(found) else np.array(_IDENTITY)
        return operands[:3], operands[3:6]

    @cached_property
    def opcode_lists(self) -> list[list[int]]:
        """``opcode`` as nested lists, from which elements are read ten times as fast as from an array."""
        listed: list[list[int]] = self.opcode.tolist()
        return listed


class ColorTransform(Value, ABC):
    """Step of a color program: the base of all color transforms.

    Attributes:
        normalizes: whether the output is normalized values instead of grey levels.
        erases: whether the transform may also stand after ``Normalize``, and then works on normalized values.
        moves_pixels: whether the transform moves pixels, after which boxes and other targets no longer fit.
    """

    normalizes = False
    erases = False
    moves_pixels = False

    @abstractmethod
    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        """Draw a program for images of ``sizes``, int64 (n, 2), width first; all use equally many random numbers."""

    def check(self, *, normalized: bool) -> None:
        """Raise UsageError if the transform cannot work on grey levels or, if ``normalized``, on normalized values."""


def compose_color(transforms: Sequence[ColorTransform], sizes: I64, random: BatchRandom) -> ColorProgram:
    """Draw one program of transforms checked by ``check_color``, for images of ``sizes``, int64 (n, 2), width first."""
    if not transforms:
        return ColorProgram.identity(len(sizes))
    programs = [transform(sizes, random) for transform in transforms]
    if not normalizes(transforms):
        programs.append(ColorProgram.identity(len(sizes)))
    return ColorProgram.chain(programs)


def normalizes(transforms: Sequence[ColorTransform]) -> bool:
    """Return whether any of the transforms normalizes, which makes the images floats."""
    return any(transform.normalizes for transform in transforms)


def check_color(transforms: Sequence[ColorTransform]) -> None:
    """Raise UsageError if ``Normalize`` occurs twice or precedes a transform of levels, or if any ``check`` fails."""
    normalized = False
    for transform in transforms:
        if normalized and transform.normalizes:
            raise UsageError("Normalize stands twice in the list of transforms; keep one")
        if normalized and not transform.erases:
            raise UsageError(
                f"{name_of(transform)} follows Normalize but works on grey levels; put it before Normalize"
                " (only RandomErasing and callables of your own may follow)"
            )
        transform.check(normalized=normalized)
        normalized = normalized or transform.normalizes
