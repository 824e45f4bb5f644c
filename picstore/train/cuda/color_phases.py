"""Color phases: color programs as words of descriptors, split into launches at steps that read other pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import F64, I64, Bools
from picstore.train.cuda.color import ERASE_NORMALS
from picstore.train.cuda.descriptor import OPERANDS, STEP
from picstore.train.transforms import opcodes
from picstore.train.transforms.color_program import ColorProgram

CANVAS_STEPS = frozenset(
    (opcodes.AUTOCONTRAST, opcodes.EQUALIZE, opcodes.SHARPNESS, opcodes.WARP, opcodes.ELASTIC, opcodes.MIX)
)
TABLE_STEPS = frozenset((opcodes.AUTOCONTRAST, opcodes.EQUALIZE))  # need a table made of the counts of levels
ROW_STEPS = frozenset((opcodes.BLUR, opcodes.ELASTIC))  # have a horizontal pass first
_BARS = [opcodes.CONTRAST, opcodes.BLUR, *CANVAS_STEPS]  # steps that begin a phase

_NEGLIGIBLE = 2.0**-16  # of the sum of a blur's weights, on either side; as in train/cpu/blur.py


@dataclass(frozen=True, eq=False)
class ColorPhases:
    """Steps of n images in p phases.

    Attributes:
        words: int64 (n, k, 14), see ``descriptor.py``.
        counts: int64 (n,), number of steps of each image.
        begins: int64 (n, p + 1), the first step of each phase, and the last step + 1.
        starts: opcodes with which each phase begins in any image.
    """

    words: I64
    counts: I64
    begins: I64
    starts: list[frozenset[int]]

    @classmethod
    def empty(cls, n: int) -> ColorPhases:
        """One phase without steps for n images."""
        none = np.zeros((n, 0, STEP.value), np.int64)
        return cls(none, np.zeros(n, np.int64), np.zeros((n, 2), np.int64), [frozenset()])

    @classmethod
    def from_program(cls, program: ColorProgram, size: I64, *, floats: bool) -> ColorPhases:
        """Split the color program of images of int64 (n, 2) widths and heights; only floats are normalized."""
        opcode, operands = program.opcode.copy(), program.operands.copy()
        counts = (opcode != opcodes.NOTHING).sum(axis=1)
        normalized = (np.cumsum(opcode == opcodes.NORMALIZE, axis=1) > 0) & floats
        _prepare_boxes(opcode, operands, size, normalized)
        _prepare_operands(opcode, operands)
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
        return cls(words, counts, begins, starts)


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


def _prepare_operands(opcode: I64, operands: F64) -> None:
    """Replace operands by numbers that kernels would compute again for each pixel."""
    blends = np.isin(opcode, [opcodes.CONTRAST, opcodes.SATURATION, opcodes.SHARPNESS])
    operands[:, :, 1] = np.where(blends, 1 - operands[:, :, 0], operands[:, :, 1])
    operands[:, :, 0] = np.where(opcode == opcodes.HUE, 6 * operands[:, :, 0], operands[:, :, 0])
    blurs = opcode == opcodes.BLUR
    if blurs.any():
        operands[blurs, :5] = _blur_operands(operands[blurs])
    elastic = opcode == opcodes.ELASTIC
    sigmas = operands[elastic, 2:4]
    with np.errstate(divide="ignore"):
        operands[elastic, 2:4] = np.where(sigmas > 0, -0.5 / sigmas**2, 0.0)  # slopes of the logarithms of taps
    operands[elastic, 4:6] = (8 * sigmas + 1).astype(np.int64) // 2  # taps on either side


def _blur_operands(operands: F64) -> F64:
    """Radius across and down, slope, weight of the middle tap across and down: float64 (m, 5), of operands (m, 12)."""
    sigma = operands[:, 2:3]
    columns = []
    for radius in (operands[:, 0:1], operands[:, 1:2]):
        k = np.arange(int(radius.max()) + 1)
        weights = np.where(k <= radius, np.exp(-0.5 * (k / sigma) ** 2), 0.0)
        total = 2 * weights.sum(axis=1, keepdims=True) - 1
        tails = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1] / total
        columns.append(((tails[:, 1:] > _NEGLIGIBLE).sum(axis=1), 1 / total[:, 0]))
    (across, weight_across), (down, weight_down) = columns
    return np.stack([across, down, -0.5 / sigma[:, 0] ** 2, weight_across, weight_down], axis=1)
