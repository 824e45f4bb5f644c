"""Schedules of mixtures: how many samples each source gives to a global batch, by the number of the batch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from picstore.errors import UsageError


@dataclass(frozen=True)
class MixSchedule:
    """Counts that are constant from one step to the next.

    Attributes:
        steps: numbers of the global batches from which on counts hold; the first is 0, and they ascend.
        counts: of each source in a global batch, for each step.
    """

    steps: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if any(one >= other for one, other in zip(self.steps, self.steps[1:], strict=False)):
            raise UsageError(f"schedule has the steps {list(self.steps)}; each must come once, in ascending order")
        for step, counts in zip(self.steps, self.counts, strict=True):
            if min(counts) < 0 or not any(counts):
                raise UsageError(f"schedule has the counts {list(counts)} at step {step}; give at least 0, one above")

    @classmethod
    def constant(cls, counts: Sequence[int]) -> MixSchedule:
        """Give the same counts to all batches."""
        return cls((0,), (tuple(counts),))

    def times(self, factor: int) -> MixSchedule:
        """Multiply all counts."""
        return MixSchedule(self.steps, tuple(tuple(factor * each for each in counts) for counts in self.counts))

    def counts_at(self, batch: int) -> tuple[int, ...]:
        """Counts of a global batch by source."""
        return self.counts[self._piece(batch)]

    def taken(self, batch: int) -> tuple[int, ...]:
        """Samples that each source has given before a global batch."""
        piece = self._piece(batch)
        return self._add(piece, batch - self.steps[piece])

    def batch_after(self, taken: Sequence[int]) -> int | None:
        """Find the global batch before which the sources have given ``taken`` samples; None if no batch fits."""
        total = sum(taken)
        piece = bisect.bisect_right([sum(each) for each in self._taken], total) - 1
        batch = self.steps[piece] + (total - sum(self._taken[piece])) // sum(self.counts[piece])
        return batch if self.taken(batch) == tuple(taken) else None

    @cached_property
    def _taken(self) -> list[tuple[int, ...]]:
        """Samples that each source has given before each of the steps."""
        taken = [(0,) * len(self.counts[0])]
        for counts, step, following in zip(self.counts, self.steps, self.steps[1:], strict=False):
            taken.append(tuple(t + (following - step) * c for t, c in zip(taken[-1], counts, strict=True)))
        return taken

    def _piece(self, batch: int) -> int:
        return bisect.bisect_right(self.steps, batch) - 1

    def _add(self, piece: int, batches: int) -> tuple[int, ...]:
        pairs = zip(self._taken[piece], self.counts[piece], strict=True)
        return tuple(taken + batches * count for taken, count in pairs)
