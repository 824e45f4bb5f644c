"""Descriptor tables: the words of ``augment_layout.py`` for a batch, from resampling parameters and color programs.

A color program is split into phases, which are launches, at the steps that read other pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from picstore.arrays import F64, I64, Array, Bools
from picstore.train.cuda import augment_layout as layout
from picstore.train.cuda.gpu_color import ERASE_NORMALS, SMOOTHING_ROW
from picstore.train.cuda.gpu_filter_weights import FIRSTS
from picstore.train.cuda.resample_params import ResampleParams
from picstore.train.transforms import opcodes
from picstore.train.transforms.blur_weights import smoothing_rows
from picstore.train.transforms.color_program import ColorProgram

CANVAS_STEPS = frozenset(
    (opcodes.AUTOCONTRAST, opcodes.EQUALIZE, opcodes.SHARPNESS, opcodes.WARP, opcodes.ELASTIC, opcodes.MIX)
)
TABLE_STEPS = frozenset((opcodes.AUTOCONTRAST, opcodes.EQUALIZE))  # steps that need the number of pixels by level
ROW_STEPS = frozenset((opcodes.BLUR, opcodes.ELASTIC))  # Before these steps, another launch blurs along rows.
_BARS = [opcodes.CONTRAST, opcodes.BLUR, *CANVAS_STEPS]  # steps that read the whole image, and so begin a phase

_NO_SMOOTHING = np.zeros((0, 2), np.float32)


@dataclass(frozen=True, eq=False)
class ColorPhases:
    """Color steps of n images in p phases; a phase begins with a step that needs the previous phase's whole image."""

    words: I64  # (n, k, 14), words of each image's k steps, see ``augment_layout.py``
    counts: I64  # (n,), number of steps of each image
    begins: I64  # (n, p + 1), index of the first step of each of the p phases, then the image's number of steps
    starts: list[frozenset[int]]  # p sets, one a phase: opcodes of the steps that begin the phase in any image
    smoothing: Array  # float32 (m, even number), m rows of weights of blurs, from ``blur_weights.smoothing_rows``

    @classmethod
    def empty(cls, n: int) -> ColorPhases:
        """Return the phases of n images that are only resampled: a single phase without color steps."""
        none = np.zeros((n, 0, layout.STEP.value), np.int64)
        return cls(none, np.zeros(n, np.int64), np.zeros((n, 2), np.int64), [frozenset()], _NO_SMOOTHING)

    @classmethod
    def from_program(cls, program: ColorProgram, size: I64, *, floats: bool) -> ColorPhases:
        """Split a color program into phases for outputs of ``size`` (n, 2), without ``NORMALIZE`` unless ``floats``."""
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
        words = np.empty((*opcode.shape, layout.STEP.value), dtype=np.int64)
        words[:, :, 0], words[:, :, 1] = opcode, program.key.view(np.int64)
        words[:, :, layout.OPERANDS.value :] = operands.view(np.int64)
        bar = np.isin(opcode, _BARS)
        phase = np.cumsum(bar, axis=1)
        last = int(phase.max(initial=0))
        begins = np.stack([np.minimum((phase < p).sum(axis=1), counts) for p in range(last + 2)], axis=1)
        starts = [frozenset(opcode[bar & (phase == p)].tolist()) for p in range(last + 1)]
        return cls(words, counts, begins, starts, smoothing)


def _prepare_boxes(opcode: I64, operands: F64, size: I64, normalized: Bools) -> None:
    """Clip erasing steps' boxes to the image; truncate their colors to whole levels, unless after Normalize."""
    erases = (opcode == opcodes.ERASE) | (opcode == opcodes.ERASE_RANDOM)
    if not erases.any():
        return
    highest = np.tile(size, 2)[:, None].astype(np.float64)
    boxes = np.clip(np.trunc(operands[:, :, :4]), 0, highest)
    operands[:, :, :4] = np.where(erases[:, :, None], boxes, operands[:, :, :4])
    levels = operands[:, :, 4:7]
    operands[:, :, 4:7] = np.where((erases & ~normalized)[:, :, None], np.trunc(levels), levels)


def _prepare_operands(opcode: I64, operands: F64) -> Array:
    """Replace operands by numbers that kernels would otherwise compute for each pixel; return all blurs' weights.

    A blur has two rows of weights, across and down; an elastic displacement has two rows for each axis. The operand
    ``SMOOTHING_ROW`` of such a step becomes the index of its first row.
    """
    blends = np.isin(opcode, [opcodes.CONTRAST, opcodes.SATURATION, opcodes.SHARPNESS])
    operands[:, :, 1] = np.where(blends, 1 - operands[:, :, 0], operands[:, :, 1])
    operands[:, :, 0] = np.where(opcode == opcodes.HUE, 6 * operands[:, :, 0], operands[:, :, 0])
    blurs, elastic = opcode == opcodes.BLUR, opcode == opcodes.ELASTIC
    if not (blurs.any() or elastic.any()):
        return _NO_SMOOTHING
    blurred, moved = operands[blurs], np.maximum(operands[elastic, 2:4], opcodes.LEAST_SIGMA)
    radius = blurred[:, :2].astype(np.int64)
    # As in torchvision, the noise for an axis is blurred along both axes with that axis's radius.
    reach = (8 * operands[elastic, 2:4] + 1).astype(np.int64) // 2
    operands[blurs, SMOOTHING_ROW] = 2 * np.arange(len(radius))
    operands[elastic, SMOOTHING_ROW] = radius.size + 4 * np.arange(len(reach))
    return smoothing_rows(
        np.concatenate([radius.ravel(), np.repeat(reach, 2, axis=1).ravel()]),
        np.concatenate([np.repeat(blurred[:, 2], 2), np.tile(moved, 2).ravel()]),
    )


@dataclass(frozen=True, eq=False)
class DescriptorTable:
    """Descriptors of a batch's images for ``augment_kernels.py``, and the numbers that launches of the kernels need."""

    header: I64  # (HEADER,), words of the header, see ``augment_layout.py``
    rows: I64  # (n, k), a descriptor of k words for each image
    smoothing: I64  # (m,), rows of ``ColorPhases.smoothing``, two float32 in each word
    offsets: I64  # (n,), number of values (3 · width · height) of all outputs before each image's output
    values: int  # number of values of all outputs together
    tiles: int  # number of tiles of the largest output
    starts: list[frozenset[int]]  # opcodes of the steps that begin each phase, see ``ColorPhases``
    weights: int  # number of int32 in the memory for all images' weights of source pixels

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.offsets)

    @property
    def size(self) -> int:
        """Number of int64 words, made even, because Triton recompiles kernels for addresses not divisible by 16."""
        words = self.header.size + self.rows.size + self.smoothing.size
        return words + words % 2

    def place_outputs(self, addresses: I64) -> None:
        """Set the address of each image's output, int64 (n,), in the descriptors."""
        self.rows[:, layout.OUTPUT.value] = addresses

    def write(self, words: I64) -> None:
        """Write the table to ``words``, int64 (``size``,)."""
        at = 0
        for part in (self.header, self.rows, self.smoothing):
            words[at : at + part.size].reshape(part.shape)[...] = part
            at += part.size


def make_descriptor_table(params: ResampleParams, phases: ColorPhases) -> DescriptorTable:
    """Return the descriptor table of a batch, without the outputs' addresses, which ``place_outputs`` sets."""
    n = len(params.size)
    values = 3 * params.size[:, 0] * params.size[:, 1]
    ends = values.cumsum()
    tiles = -(-params.size[:, 0] // layout.TILE_WIDTH.value) * -(-params.size[:, 1] // layout.TILE_HEIGHT.value)
    axis_sizes = FIRSTS.value + params.size * (2 + params.taps)
    axis_sizes[params.slanted] = 0
    axis_ends = axis_sizes.ravel().cumsum().reshape(n, 2)
    edges, steps, begins = _flat(params.edges), _flat(phases.words), phases.begins
    first = list(accumulate((part.shape[1] for part in (edges, steps, begins)), initial=layout.FIXED.value))
    edge_counts = np.where(params.shows_edges, params.edges.shape[1], 0)
    rows = np.empty((n, first[3]), dtype=np.int64)
    # All words of ``augment_layout.py`` in order, joined in one call; separate assignments took twice as long, 28 µs.
    fixed = [
        params.planes[:, :2],
        params.source_size,
        params.clip,
        params.slanted,
        params.flip,
        params.window,
        np.ascontiguousarray(params.map).view(np.int64),
        params.fill,
        ends - values,
        params.size,
        tiles,
        *(np.full(n, first[0]), edge_counts),
        *(np.full(n, first[1]), phases.counts),
        np.full(n, first[2]),
        *(params.interpolation, params.antialias),
        params.planes[:, 2],
        axis_ends - axis_sizes,
        np.zeros(n, np.int64),
    ]
    columns = [part if part.ndim == 2 else part[:, None] for part in fixed]
    np.concatenate(columns, axis=1, out=rows[:, : layout.FIXED.value])
    for word, part in zip(first, (edges, steps, begins), strict=False):
        if part.shape[1]:
            rows[:, word : word + part.shape[1]] = part
    header = np.zeros(layout.HEADER.value, dtype=np.int64)
    header[: layout.COUNTS.value] = rows.shape[1], n, ends[-1]
    header[layout.SMOOTHING.value :] = header.size + rows.size, phases.smoothing.shape[1]
    smoothing = np.ascontiguousarray(phases.smoothing).reshape(-1).view(np.int64)
    weights = int(axis_ends[-1, -1])
    return DescriptorTable(
        header, rows, smoothing, ends - values, int(ends[-1]), int(tiles.max()), phases.starts, weights
    )


def _flat(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> I64:
    """Return the bits of an array (n, …) of 64-bit numbers as words, int64 (n, k)."""
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.int64)
