"""Replacement of each damaged record by the next sound record, so that batches keep their size."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from picstore.arrays import I64
from picstore.errors import Damage
from picstore.train.batching.host_batch import HostBatch

logger = logging.getLogger("picstore")

# End of the error's message for a damaged record that cannot be replaced.
NO_REPLACEMENT = ", and its batch holds no sound record to replace it"


def next_sound(numbers: I64, sound: I64) -> I64:
    """Return, for each index in ``numbers``, the smallest index in ascending ``sound`` that is not below it.

    For an index above all of ``sound``, return the first of ``sound``.
    """
    return sound[np.searchsorted(sound, numbers) % len(sound)]


def replace_damaged(batch: HostBatch, problems: Mapping[int, Damage]) -> None:
    """Replace samples whose slot has a problem by the next sound sample of its source; raise the problem if none."""
    for slot, replacement in replacements(batch.source, problems).items():
        _copy_sample(batch, replacement, slot)


def replacements(source: I64, problems: Mapping[int, Damage]) -> dict[int, int]:
    """Return, for each slot with a problem, the next sound slot of its source; raise the problem if there is none."""
    if not problems:
        return {}
    damaged = np.isin(np.arange(len(source)), list(problems))
    found = {}
    for slot, problem in problems.items():
        sound = np.flatnonzero((source == source[slot]) & ~damaged)
        if not len(sound):
            raise type(problem)(problem.what + NO_REPLACEMENT, problem.file, problem.offset)
        found[slot] = int(next_sound(np.array(slot), sound))
    return found


def _copy_sample(batch: HostBatch, source: int, target: int) -> None:
    if batch.encoded is None:
        for view in chain.from_iterable(batch.images):
            view[target] = view[source]
    else:
        batch.encoded.shown[target] = batch.encoded.shown[source]
    batch.labels[target], batch.ids[target] = batch.labels[source], batch.ids[source]
    for view in chain.from_iterable(batch.targets or []):
        view[target] = copy.deepcopy(view[source])
    for values in batch.columns.values():
        values[target] = values[source]


class DamageLog:
    """Log of damaged records, each once, and of the first images that a GPU left to the CPU.

    If ``strict`` is set, the first damage is raised instead by the code that uses the log.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self._logged: set[str] = set()
        self._fell_back = False

    def report(self, damage: Sequence[Damage]) -> None:
        """Log the damaged records of a batch that have not been logged yet."""
        for text in map(str, damage):
            if text not in self._logged:
                self._logged.add(text)
                logger.warning("left out: %s", text)

    def report_fallbacks(self, reasons: Sequence[str], *, of: int) -> None:
        """Log, at the first call only, why the GPU's decoder left some of a batch's ``of`` images to the CPU."""
        if not self._fell_back:
            self._fell_back = True
            text = "the CPU decoded %d of %d images of a batch, which the GPU's decoder refuses: %s; "
            logger.warning(text + "loader.stats.fallbacks counts them", len(reasons), of, reasons[0])
