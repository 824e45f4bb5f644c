"""Descriptor tables: the words of ``descriptor.py`` for a batch, from resampling parameters and color phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64
from picstore.train.cuda import descriptor
from picstore.train.cuda.color_phases import ColorPhases
from picstore.train.cuda.filter_weights import FIRSTS
from picstore.train.cuda.resample_params import ResampleParams


@dataclass(frozen=True, eq=False)
class DescriptorTable:
    """The descriptors of a batch, and the figures that the host needs for launches.

    Attributes:
        words: int64 (k,), header and descriptors.
        offsets: int64 (n,), values of the outputs before each output.
        values: number of values of all outputs.
        tiles: number of tiles of the largest output.
        starts: opcodes with which each phase begins.
        weights: int32 that the weights of source pixels take.
    """

    words: I64
    offsets: I64
    values: int
    tiles: int
    starts: list[frozenset[int]]
    weights: int

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.offsets)


def make_descriptor_table(params: ResampleParams, phases: ColorPhases) -> DescriptorTable:
    """Make the descriptors of a batch."""
    n = len(params.size)
    values = 3 * params.size.prod(axis=1)
    ends = np.cumsum(values)
    across, down = -(-params.size // (descriptor.TILE_WIDTH.value, descriptor.TILE_HEIGHT.value)).T
    axis_sizes = np.where(params.slanted[:, None], 0, FIRSTS.value + params.size * (2 + params.taps)).ravel()
    axis_ends = np.cumsum(axis_sizes)
    edges, steps, begins = _flat(params.edges), _flat(phases.words), phases.begins
    edge_counts = np.where(params.shows_edges, params.edges.shape[1], 0)
    first = descriptor.FIXED.value + np.cumsum([0, edges.shape[1], steps.shape[1], begins.shape[1]])
    rows = np.zeros((n, first[3]), dtype=np.int64)
    fixed = {
        descriptor.ADDRESS: params.planes[:, 0],
        descriptor.PLANE: params.planes[:, 1],
        descriptor.PITCH: params.planes[:, 2],
        descriptor.SOURCE: params.source_size,
        descriptor.CLIP: params.clip,
        descriptor.SLANTED: params.slanted,
        descriptor.FLIP: params.flip,
        descriptor.WINDOW: params.window,
        descriptor.MAP: np.ascontiguousarray(params.map).view(np.int64),
        descriptor.FILL: params.fill,
        descriptor.OFFSET: ends - values,
        descriptor.SIZE: params.size,
        descriptor.TILES: across * down,
        descriptor.EDGES: np.stack([np.full(n, first[0]), edge_counts], axis=1),
        descriptor.STEPS: np.stack([np.full(n, first[1]), phases.counts], axis=1),
        descriptor.PHASES: np.full(n, first[2]),
        descriptor.FILTER: np.stack([params.interpolation, params.antialias], axis=1),
        descriptor.AXES: (axis_ends - axis_sizes).reshape(n, 2),
    }
    for word, column in fixed.items():
        columns = column.reshape(n, -1)
        rows[:, word.value : word.value + columns.shape[1]] = columns
    for word, columns in zip(first, (edges, steps, begins), strict=False):
        rows[:, word : word + columns.shape[1]] = columns
    header = np.zeros(descriptor.HEADER.value, dtype=np.int64)
    header[: descriptor.COUNTS.value] = rows.shape[1], n, ends[-1]
    smoothing = np.ascontiguousarray(phases.smoothing).reshape(-1).view(np.int64)
    header[descriptor.SMOOTHING.value :] = header.size + rows.size, phases.smoothing.shape[1]
    words = np.concatenate([header, rows.ravel(), smoothing])
    tiles = int((across * down).max())
    return DescriptorTable(words, ends - values, int(ends[-1]), tiles, phases.starts, int(axis_ends[-1]))


def _flat(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> I64:
    """View an array (n, …) as words (n, k)."""
    flat: I64 = np.ascontiguousarray(array).reshape(len(array), -1).view(np.int64)
    return flat
