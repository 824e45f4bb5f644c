"""Random numbers for the images of a batch, as pure functions of seed, epoch and record id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import F64


class BatchRandom:
    """A random generator for each of n record ids; the k-th number depends on (seed, epoch, record id, k) only."""

    def __init__(self, seed: int, epoch: int, ids: npt.ArrayLike) -> None:
        words = np.asarray(ids).astype(np.uint64)
        self._keys = rng.keys(rng.key(rng.AUGMENT, seed, epoch), words)[:, None]
        self._position = 0

    def uniform(self, count: int) -> F64:
        """The next ``count`` uniform numbers in [0, 1) of every image: float64 (n, count)."""
        counters = np.arange(self._position, self._position + count, dtype=np.uint64)
        self._position += count
        return rng.unit(self._keys, counters)
