"""A program of colour as the kernels take it: steps in words, and the phases in which they are run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.train.cuda.color import ERASE_NORMALS
from picstore.train.cuda.descriptor import NUMBERS, STEP
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import ColorProgram

_NEGLIGIBLE = 2.0**-16  # of the sum of a blur's weights, on either side; as the CPU's


@dataclass(frozen=True, eq=False)
class Phases:
    """Steps of n images.

    Attributes:
        words: int64 (n, k, 10), see ``row.py``.
        counts: int64 (n,), how many of them.
        begins: int64 (n, p + 1), the step with which each phase begins, and that behind the last.
        blurs: of each of the p phases, whether one begins with a blur.
    """

    words: I64
    counts: I64
    begins: I64
    blurs: list[bool]

    @classmethod
    def none(cls, n: int) -> Phases:
        """Nothing happens to n images."""
        return cls(np.zeros((n, 0, STEP.value), np.int64), np.zeros(n, np.int64), np.zeros((n, 2), np.int64), [False])

    @classmethod
    def of(cls, program: ColorProgram, size: I64, *, floats: bool) -> Phases:
        """Those of a program.

        Args:
            program: of n images.
            size: int64 (n, 2), their widths and heights.
            floats: whether the outputs are floats; bytes are not normalised.
        """
        code, value = program.opcode.copy(), program.operands.copy()
        counts = (code != opcodes.NOTHING).sum(axis=1)
        behind = (np.cumsum(code == opcodes.NORMALIZE, axis=1) > 0) & floats
        _prepare_boxes(code, value, size, behind)
        _prepare_numbers(code, value)
        code[(code == opcodes.ERASE_RANDOM) & behind] = ERASE_NORMALS
        if not floats:
            code[code == opcodes.NORMALIZE] = opcodes.NOTHING
        words = np.empty((*code.shape, STEP.value), dtype=np.int64)
        words[:, :, 0], words[:, :, 1] = code, program.key.view(np.int64)
        words[:, :, NUMBERS.value :] = value.view(np.int64)
        bar = (code == opcodes.CONTRAST) | (code == opcodes.BLUR)
        phase = np.cumsum(bar, axis=1)
        last = int(phase.max(initial=0))
        begins = np.stack([np.minimum((phase < p).sum(axis=1), counts) for p in range(last + 2)], axis=1)
        blurs = [bool((bar & (phase == p) & (code == opcodes.BLUR)).any()) for p in range(last + 1)]
        return cls(words, counts, begins, blurs)


def _prepare_boxes(code: I64, value: F64, size: I64, behind: Bools) -> None:
    """Boxes to erase become those within the image; before normalising, levels to fill them with become whole."""
    erases = (code == opcodes.ERASE) | (code == opcodes.ERASE_RANDOM)
    if not erases.any():
        return
    highest = np.tile(size, 2)[:, None].astype(np.float64)
    boxes = np.clip(np.trunc(value[:, :, :4]), 0, highest)
    value[:, :, :4] = np.where(erases[:, :, None], boxes, value[:, :, :4])
    levels = value[:, :, 4:7]
    value[:, :, 4:7] = np.where((erases & ~behind)[:, :, None], np.trunc(levels), levels)


def _prepare_numbers(code: I64, value: F64) -> None:
    """What is the same for all pixels is computed here."""
    blends = (code == opcodes.CONTRAST) | (code == opcodes.SATURATION)
    value[:, :, 1] = np.where(blends, 1 - value[:, :, 0], value[:, :, 1])
    value[:, :, 0] = np.where(code == opcodes.HUE, 6 * value[:, :, 0], value[:, :, 0])
    blurs = code == opcodes.BLUR
    if blurs.any():
        value[blurs, :5] = _blur_numbers(value[blurs])


def _blur_numbers(value: F64) -> F64:
    """Of blurs float64 (m, 8): radius across and down, slope, weight of the middle tap across and down."""
    sigma = value[:, 2:3]
    columns = []
    for radius in (value[:, 0:1], value[:, 1:2]):
        k = np.arange(int(radius.max()) + 1)
        weights = np.where(k <= radius, np.exp(-0.5 * (k / sigma) ** 2), 0.0)
        total = 2 * weights.sum(axis=1, keepdims=True) - 1
        tails = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1] / total
        columns.append(((tails[:, 1:] > _NEGLIGIBLE).sum(axis=1), 1 / total[:, 0]))
    (across, weight_across), (down, weight_down) = columns
    return np.stack([across, down, -0.5 / sigma[:, 0] ** 2, weight_across, weight_down], axis=1)
