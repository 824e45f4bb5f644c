"""Progressive: lists of transforms by epoch, for example for images that grow during a training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import I64, Bools
from picstore.errors import UsageError
from picstore.train.transforms.constructed import Value


class Progressive(Value):
    """Loader ``transform`` with a list of transforms for each stage of a training.

    ``Progressive({0: [RandomResizedCrop(128)], 16: [RandomResizedCrop(160)], 32: [RandomResizedCrop(192)]})`` has
    images of 160 pixels in epochs 16 to 31. Order, batches and random numbers are the same as without stages.

    Args:
        stages: by each stage's first epoch, one of which is 0, a list of transforms and callables as
            :class:`picstore.Loader` takes it, or ``Views`` of the same groups.
    """

    def __init__(self, stages: Mapping[int, Sequence[Any]]) -> None:
        if not isinstance(stages, Mapping) or not all(isinstance(epoch, int) and epoch >= 0 for epoch in stages):
            raise UsageError(f"Progressive: stages are {stages!r}; give lists of transforms by their first epochs")
        self.lists = tuple(stages[epoch] for epoch in sorted(stages))
        self.choice = EpochStages(tuple(sorted(stages)))
        if 0 not in stages:
            text = f"Progressive: there is no list for epoch 0; the first is for {min(stages, default=None)}"
            raise UsageError(f"{text}; give one for epoch 0")


@dataclass(frozen=True, slots=True)
class EpochStages:
    """First epochs of a training's stages, ascending from 0, by which the loader chooses an epoch's transforms."""

    firsts: tuple[int, ...] = (0,)

    def stage(self, epoch: int) -> int:
        return bisect_right(self.firsts, epoch) - 1

    def uses(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Return bool (n,), equal for all n images: whether ``plan`` is the index of the epoch's stage."""
        return np.full(len(sizes), plan == self.stage(epoch), dtype=np.bool_)
