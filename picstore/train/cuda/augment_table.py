"""Descriptor tables: the words of ``descriptor.py`` for a batch, from resampling parameters and color phases."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from picstore.arrays import I64
from picstore.train.cuda import augment_layout as layout
from picstore.train.cuda.color_phases import ColorPhases
from picstore.train.cuda.gpu_filter_weights import FIRSTS
from picstore.train.cuda.resample_params import ResampleParams


@dataclass(frozen=True, eq=False)
class DescriptorTable:
    """The descriptors of a batch, and the figures that the host needs for launches.

    Attributes:
        header: int64 (HEADER,).
        rows: int64 (n, k), the descriptors.
        smoothing: int64 (m,), the words of weights.
        offsets: int64 (n,), values of the outputs before each output.
        values: number of values of all outputs.
        tiles: number of tiles of the largest output.
        starts: opcodes with which each phase begins.
        weights: int32 that the weights of source pixels take.
    """

    header: I64
    rows: I64
    smoothing: I64
    offsets: I64
    values: int
    tiles: int
    starts: list[frozenset[int]]
    weights: int

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.offsets)

    @property
    def size(self) -> int:
        """Number of words, even: Triton compiles a kernel anew for an address that is no multiple of 16 bytes."""
        words = self.header.size + self.rows.size + self.smoothing.size
        return words + words % 2

    def place_outputs(self, addresses: I64) -> None:
        """Note where the outputs lie, int64 (n,)."""
        self.rows[:, layout.OUTPUT.value] = addresses

    def write(self, words: I64) -> None:
        """Write all to ``size`` words."""
        at = 0
        for part in (self.header, self.rows, self.smoothing):
            words[at : at + part.size].reshape(part.shape)[...] = part
            at += part.size


def make_descriptor_table(params: ResampleParams, phases: ColorPhases) -> DescriptorTable:
    """Make the descriptors of a batch."""
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
    # The fixed words in their order, as one concatenation: an assignment for each took twice as long, 28 µs a batch.
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
    """View an array (n, …) as words (n, k)."""
    flat: I64 = np.ascontiguousarray(array).reshape(len(array), -1).view(np.int64)
    return flat
