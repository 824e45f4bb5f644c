"""The table of ``row.py``, made from views and phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64
from picstore.train.cuda import descriptor
from picstore.train.cuda.color_phases import Phases
from picstore.train.cuda.resample_params import Views


@dataclass(frozen=True, eq=False)
class Table:
    """A batch in words, and what the host needs of it to launch kernels.

    Attributes:
        words: int64 (k,).
        targets: int64 (n,), where the outputs begin: values of outputs before each.
        values: of all outputs together.
        tiles: of the largest output.
        blurs: of each phase, whether it begins with blurs.
    """

    words: I64
    targets: I64
    values: int
    tiles: int
    blurs: list[bool]

    @property
    def count(self) -> int:
        """Images."""
        return len(self.targets)


def make_table(views: Views, phases: Phases) -> Table:
    """The table for views and what becomes of them."""
    n = len(views.size)
    values = 3 * views.size.prod(axis=1)
    ends = np.cumsum(values)
    across, down = -(-views.size // (descriptor.TILE_WIDTH.value, descriptor.TILE_HEIGHT.value)).T
    edges, steps, begins = _flat(views.edges), _flat(phases.words), phases.begins
    first = descriptor.FIXED.value + np.cumsum([0, edges.shape[1], steps.shape[1], begins.shape[1]])
    rows = np.zeros((n, first[3]), dtype=np.int64)
    fixed = {
        descriptor.ADDRESS: views.planes[:, 0],
        descriptor.PLANE: views.planes[:, 1],
        descriptor.SOURCE: views.source,
        descriptor.CLIP: views.clip,
        descriptor.TURNED: views.turned,
        descriptor.FLIP: views.flip,
        descriptor.TAPS: views.taps,
        descriptor.MAP: np.ascontiguousarray(views.map).view(np.int64),
        descriptor.FILL: views.fill,
        descriptor.TARGET: ends - values,
        descriptor.SIZE: views.size,
        descriptor.TILES: across * down,
        descriptor.EDGES: np.stack([np.full(n, first[0]), np.where(views.bounded, views.edges.shape[1], 0)], axis=1),
        descriptor.STEPS: np.stack([np.full(n, first[1]), phases.counts], axis=1),
        descriptor.PHASES: np.full(n, first[2]),
    }
    for word, column in fixed.items():
        columns = column.reshape(n, -1)
        rows[:, word.value : word.value + columns.shape[1]] = columns
    for word, part in zip(first, (edges, steps, begins), strict=False):
        rows[:, word : word + part.shape[1]] = part
    header = np.array([rows.shape[1], n, ends[-1]], dtype=np.int64)
    words = np.concatenate([header, rows.ravel()])
    return Table(words, ends - values, int(ends[-1]), int((across * down).max()), phases.blurs)


def _flat(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> I64:
    """Words (n, k) of an array (n, …)."""
    flat: I64 = np.ascontiguousarray(array).reshape(len(array), -1).view(np.int64)
    return flat
