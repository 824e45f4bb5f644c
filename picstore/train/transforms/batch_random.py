"""Random numbers for the images of a batch, as pure functions of seed, epoch and record id."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from picstore import rng
from picstore.arrays import F64, I64, U64


class BatchRandom:
    """Random generators of n images; a generator's k-th number depends only on (seed, epoch, record id, view, k).

    Args:
        ids: ids of the records, (n,).
        views: indices of the views, (n,) or one for all images; 0 in a loader without views.
    """

    def __init__(self, seed: int, epoch: int, ids: npt.ArrayLike, views: npt.ArrayLike = 0) -> None:
        words, view = np.asarray(ids).astype(np.uint64), np.asarray(views).astype(np.uint64)
        keys = rng.keys(rng.key(rng.AUGMENT, seed, epoch), words)
        if view.any():
            keys = np.where(view == 0, keys, rng.keys(keys, view))
        self._keys = keys[:, None]
        self._position = 0

    def uniform(self, count: int) -> F64:
        """Draw the next ``count`` uniform numbers in [0, 1) of every image: float64 (n, count)."""
        counters = np.arange(self._position, self._position + count, dtype=np.uint64)
        self._position += count
        return rng.unit(self._keys, counters)

    def child(self, number: int) -> BatchRandom:
        """Return a new generator for each image, seeded by the image's generator, its position and ``number``.

        The position, equal for all images, counts the numbers drawn so far. Draws from the new generators do not
        advance it, so images may draw different amounts.
        """
        place = rng.keys(self._keys[:, 0], np.array([self._position], np.uint64))
        return self.of_keys(rng.keys(place, np.array([number], np.uint64)), 0)

    def rows(self, slots: I64) -> BatchRandom:
        """Return copies of the generators of the images ``slots`` (indices); the copies draw the same next numbers."""
        return self.of_keys(self._keys[slots, 0], self._position)

    @classmethod
    def of_keys(cls, keys: U64, position: int) -> BatchRandom:
        """Return generators of n images with ``keys``, uint64 (n,), as if each had drawn ``position`` numbers."""
        random = cls.__new__(cls)
        random._keys, random._position = keys[:, None], position
        return random

    def choice(self, values: Sequence[int]) -> I64:
        """Draw one of ``values`` for each image, int64 (n,). Uses 1 random number, or none if there is one value."""
        if len(values) == 1:
            return np.full(len(self._keys), values[0], dtype=np.int64)
        return np.array(values, dtype=np.int64)[(self.uniform(1)[:, 0] * len(values)).astype(np.int64)]
