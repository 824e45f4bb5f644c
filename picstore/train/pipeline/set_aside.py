"""Records that wait for their batch, copied out of containers that their lanes are done with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64
from picstore.errors import Damage
from picstore.train.batching.gather import EpochContainer, ReadResult


@dataclass(frozen=True, slots=True)
class _Waiting:
    records: I64  # ascending
    samples: int  # that are still to come; one record may have several
    held: ReadResult


class SetAside:
    """Records by container, of which each is kept until the last of its samples has come."""

    def __init__(self) -> None:
        self._waiting: dict[EpochContainer, _Waiting] = {}

    def keep(self, key: EpochContainer, container: ReadResult, records: I64, *, attachments: bool) -> None:
        """Copy records, of which one comes for each sample, out of a container.

        A damaged one stays with its container, of which another record will replace it.
        """
        samples, earlier = len(records), self._waiting.get(key)
        if earlier is not None:  # of another lane
            records, samples = np.concatenate((earlier.records, records)), samples + earlier.samples
        records = np.unique(records)
        if not isinstance(container, Damage) and container.good[records].all():
            container = container.extract(records, attachments=attachments)
        self._waiting[key] = _Waiting(records, samples, container)

    def take(self, key: EpochContainer, samples: int) -> ReadResult:
        """Records of a container for some more samples."""
        waiting = self._waiting.pop(key)
        if waiting.samples > samples:
            self._waiting[key] = _Waiting(waiting.records, waiting.samples - samples, waiting.held)
        return waiting.held
