"""Color phases: color programs as words of descriptors, split into launches at steps that read other pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import F64, I64, Array, Bools
from picstore.train.cuda.augment_layout import OPERANDS, STEP
from picstore.train.cuda.gpu_color import ERASE_NORMALS, SMOOTHING_ROW
from picstore.train.transforms import opcodes
from picstore.train.transforms.blur_weights import smoothing_rows
from picstore.train.transforms.color_program import ColorProgram

CANVAS_STEPS = frozenset(
    (opcodes.AUTOCONTRAST, opcodes.EQUALIZE, opcodes.SHARPNESS, opcodes.WARP, opcodes.ELASTIC, opcodes.MIX)
)
TABLE_STEPS = frozenset((opcodes.AUTOCONTRAST, opcodes.EQUALIZE))  # need a table made of the counts of levels
ROW_STEPS = frozenset((opcodes.BLUR, opcodes.ELASTIC))  # have a horizontal pass first
_BARS = [opcodes.CONTRAST, opcodes.BLUR, *CANVAS_STEPS]  # steps that begin a phase

_NO_SMOOTHING = np.zeros((0, 2), np.float32)


@dataclass(frozen=True, eq=False)
class ColorPhases:
    """Steps of n images in p phases.

    Attributes:
        words: int64 (n, k, 14), see ``descriptor.py``.
        counts: int64 (n,), number of steps of each image.
        begins: int64 (n, p + 1), the first step of each phase, and the last step + 1.
        starts: opcodes with which each phase begins in any image.
        smoothing: float32 (m, an even number), weights of blurs, see ``transforms/blur_weights.py``.
    """

    words: I64
    counts: I64
    begins: I64
    starts: list[frozenset[int]]
    smoothing: Array

    @classmethod
    def empty(cls, n: int) -> ColorPhases:
        """One phase without steps for n images."""
        none = np.zeros((n, 0, STEP.value), np.int64)
        return cls(none, np.zeros(n, np.int64), np.zeros((n, 2), np.int64), [frozenset()], _NO_SMOOTHING)

    @classmethod
    def from_program(cls, program: ColorProgram, size: I64, *, floats: bool) -> ColorPhases:
        """Split the color program of images of int64 (n, 2) widths and heights; only floats are normalized."""
        if program.empty and not floats:
            return cls.empty(len(size))
        opcode, operands = program.opcode.copy(), program.operands.copy()
        counts = (opcode != opcodes.NOTHING).sum(axis=1)
        normalized = (np.cumsum(opcode == opcodes.NORMALIZE, axis=1) > 0) & floats
        _prepare_boxes(opcode, operands, size, normalized)
        smoothing = _prepare_operands(opcode, operands)
        opcode[(opcode == opcodes.ERASE_RANDOM) & normalized] = ERASE_NORMALS
        if not floats:
            opcode[opcode == opcodes.NORMALIZE] = opcodes.NOTHING
        words = np.empty((*opcode.shape, STEP.value), dtype=np.int64)
        words[:, :, 0], words[:, :, 1] = opcode, program.key.view(np.int64)
        words[:, :, OPERANDS.value :] = operands.view(np.int64)
        bar = np.isin(opcode, _BARS)
        phase = np.cumsum(bar, axis=1)
        last = int(phase.max(initial=0))
        begins = np.stack([np.minimum((phase < p).sum(axis=1), counts) for p in range(last + 2)], axis=1)
        starts = [frozenset(opcode[bar & (phase == p)].tolist()) for p in range(last + 1)]
        return cls(words, counts, begins, starts, smoothing)


def _prepare_boxes(opcode: I64, operands: F64, size: I64, normalized: Bools) -> None:
    """Clip boxes to erase to the image, and truncate their levels to integers unless they are normalized values."""
    erases = (opcode == opcodes.ERASE) | (opcode == opcodes.ERASE_RANDOM)
    if not erases.any():
        return
    highest = np.tile(size, 2)[:, None].astype(np.float64)
    boxes = np.clip(np.trunc(operands[:, :, :4]), 0, highest)
    operands[:, :, :4] = np.where(erases[:, :, None], boxes, operands[:, :, :4])
    levels = operands[:, :, 4:7]
    operands[:, :, 4:7] = np.where((erases & ~normalized)[:, :, None], np.trunc(levels), levels)


def _prepare_operands(opcode: I64, operands: F64) -> Array:
    """Replace operands by numbers that kernels would compute again for each pixel; returns the weights of blurs.

    A blur has two rows of weights, across and down; an elastic displacement has two for each axis. The step's operand
    ``SMOOTHING_ROW`` is the number of the first.
    """
    blends = np.isin(opcode, [opcodes.CONTRAST, opcodes.SATURATION, opcodes.SHARPNESS])
    operands[:, :, 1] = np.where(blends, 1 - operands[:, :, 0], operands[:, :, 1])
    operands[:, :, 0] = np.where(opcode == opcodes.HUE, 6 * operands[:, :, 0], operands[:, :, 0])
    blurs, elastic = opcode == opcodes.BLUR, opcode == opcodes.ELASTIC
    if not (blurs.any() or elastic.any()):
        return _NO_SMOOTHING
    blurred, moved = operands[blurs], np.maximum(operands[elastic, 2:4], opcodes.LEAST_SIGMA)
    radius = blurred[:, :2].astype(np.int64)
    # torchvision's: a displacement along x is blurred both ways with the radius that is for x, and so is one along y.
    reach = (8 * operands[elastic, 2:4] + 1).astype(np.int64) // 2
    operands[blurs, SMOOTHING_ROW] = 2 * np.arange(len(radius))
    operands[elastic, SMOOTHING_ROW] = radius.size + 4 * np.arange(len(reach))
    return smoothing_rows(
        np.concatenate([radius.ravel(), np.repeat(reach, 2, axis=1).ravel()]),
        np.concatenate([np.repeat(blurred[:, 2], 2), np.tile(moved, 2).ravel()]),
    )
