"""What becomes of records that are damaged: their batch keeps its size, and each is counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from picstore.arrays import I64
from picstore.errors import Damage, UsageError

logger = logging.getLogger("picstore")


def replace_lost(
    problems: Mapping[int, Damage], source: I64, labels: I64, ids: I64, copy: Callable[[int, int], None]
) -> None:
    """Give each lost slot the sample of the next slot of its source that is not lost: the counts of a batch hold.

    Args:
        problems: by slot, what is lost.
        source: int64 (n,), number of the data set.
        labels, ids: int64 (n,), changed in place.
        copy: shows the image of one slot in another too.

    Raises:
        Damage: no slot of the source is left in the batch.
    """
    for slot, problem in problems.items():
        same = np.flatnonzero(source == source[slot])
        others = [other for other in same.tolist() if other not in problems]
        if not others:
            text = f"{problem.what}, and its batch holds no sound record to replace it"
            raise type(problem)(text, problem.file, problem.offset)
        other = next((other for other in others if other > slot), others[0])
        copy(other, slot)
        labels[slot], ids[slot] = labels[other], ids[other]


class DamageLog:
    """Logs each record that was lost, once.

    Args:
        on_damage: ``"skip"`` to log and go on, ``"raise"`` to stop at the first.

    Attributes:
        strict: whether to stop.
    """

    def __init__(self, on_damage: str) -> None:
        if on_damage not in ("skip", "raise"):
            raise UsageError(f"on_damage {on_damage!r} is neither 'skip' nor 'raise'")
        self.strict = on_damage == "raise"
        self._logged: set[str] = set()

    def report(self, losses: Sequence[Damage]) -> None:
        """Take note of what one batch has lost."""
        for text in map(str, losses):
            if text not in self._logged:
                self._logged.add(text)
                logger.warning("left out: %s", text)
