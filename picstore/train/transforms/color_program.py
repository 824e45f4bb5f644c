"""Programs of colour: what happens to each image of a batch between resampling and the batch tensor.

A list of transforms becomes, for all images of a batch at once, a table of steps and their parameters; ``develop.py``
runs an image's row of it. Names, parameters and meaning of the transforms, in ``photometric.py``, are those of
``torchvision.transforms.v2`` on uint8 tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64, U64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.cached_property import cached_property
from picstore.train.transforms.geometry import Draws

_AS_IT_IS = (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)  # means and deviations that leave 0 … 1


@dataclass(frozen=True, eq=False)
class Program:
    """Steps for n images, those that do nothing behind all others.

    Attributes:
        code: int64 (n, k), of ``codes.py``; in what ``compose_color`` returns each row has one ``NORMALIZE``.
        value: float64 (n, k, 8), the steps' parameters.
        key: uint64 (n, k), of what is drawn pixel by pixel.
    """

    code: I64
    value: F64
    key: U64

    @classmethod
    def of_step(cls, code: npt.ArrayLike, values: Sequence[npt.ArrayLike], *, key: Any = 0, count: int) -> Program:
        """One step for ``count`` images; each of code, values and key is a number or an array (count,)."""
        value = np.zeros((count, 1, opcodes.VALUES))
        for k, numbers in enumerate(values):
            value[:, 0, k] = numbers
        rows = np.broadcast_to(np.asarray(code, dtype=np.int64), (count,))[:, None]
        return cls(rows, value, np.broadcast_to(np.asarray(key, dtype=np.uint64), (count,))[:, None])

    @classmethod
    def chain(cls, programs: Sequence[Program]) -> Program:
        """Programs for the same images, one after the other."""
        code, value, key = (
            np.concatenate([getattr(program, name) for program in programs], axis=1)
            for name in ("code", "value", "key")
        )
        order = np.argsort(code == opcodes.NOTHING, axis=1, kind="stable")
        code = np.take_along_axis(code, order, axis=1)
        used = int((code != opcodes.NOTHING).sum(axis=1).max(initial=1))
        value = np.take_along_axis(value, order[:, :, None], axis=1)
        key = np.take_along_axis(key, order, axis=1)
        return cls(*(np.ascontiguousarray(part[:, :used]) for part in (code, value, key)))

    @classmethod
    def join(cls, programs: Sequence[Program], order: I64) -> Program:
        """Programs for different images as one: image i of it is image order[i] of all of them in turn."""
        width = max(program.code.shape[1] for program in programs)
        parts = []
        for name in ("code", "value", "key"):
            arrays = [getattr(program, name) for program in programs]
            padded = [np.zeros((len(array), width, *array.shape[2:]), array.dtype) for array in arrays]
            for target, array in zip(padded, arrays, strict=True):
                target[:, : array.shape[1]] = array
            parts.append(np.ascontiguousarray(np.concatenate(padded)[order]))
        return cls(*parts)

    @property
    def empty(self) -> bool:
        """Whether nothing happens to images of bytes."""
        return bool(self.code.shape[1] <= 1)

    @cached_property
    def codes(self) -> list[list[int]]:
        """What ``code`` holds; lists are read ten times as fast as elements of an array."""
        listed: list[list[int]] = self.code.tolist()
        return listed


class ColorTransform:
    """One step of colour on a batch; what all transforms of ``photometric.py`` are.

    Attributes:
        normalises: whether values are no grey levels any more behind it.
        erases: whether it may stand behind one that normalises.
    """

    normalises = False
    erases = False

    def __call__(self, sizes: I64, draws: Draws) -> Program:
        """The step for images of these sizes, int64 (n, 2), width first; as many draws for one as for any other."""
        raise NotImplementedError

    def check(self, *, normalised: bool) -> None:
        """Raise UsageError if this cannot work on grey levels, or, if ``normalised``, behind ``Normalize``."""


def compose_color(transforms: Sequence[ColorTransform], sizes: I64, draws: Draws) -> Program:
    """Draw the parameters of all transforms for a batch.

    Args:
        transforms: in the order in which they apply; see ``check_color``.
        sizes: int64 (n, 2), width and height of the images.
        draws: of those images.
    """
    count = len(sizes)
    programs = [transform(sizes, draws) for transform in transforms]
    if not normalises(transforms):
        programs.append(Program.of_step(opcodes.NORMALIZE, _AS_IT_IS, count=count))
    return Program.chain(programs)


def normalises(transforms: Sequence[ColorTransform]) -> bool:
    """Whether the images have to be floats because of a transform."""
    return any(transform.normalises for transform in transforms)


def check_color(transforms: Sequence[ColorTransform]) -> None:
    """Check the order of a list of transforms of colour.

    Raises:
        UsageError: something other than ``RandomErasing`` stands behind ``Normalize``, or its value does not fit.
    """
    normalised = False
    for transform in transforms:
        name = type(transform).__name__
        if normalised and transform.normalises:
            raise UsageError("Normalize stands twice in the list of transforms; keep one")
        if normalised and not transform.erases:
            raise UsageError(
                f"{name} stands behind Normalize but works on grey levels; put it before Normalize"
                " (only RandomErasing and callables of your own may follow)"
            )
        transform.check(normalised=normalised)
        normalised = normalised or transform.normalises
