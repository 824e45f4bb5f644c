"""RecordShift: ids and labels of a data set's records where it is one of several that are read as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.storage.format.checksum import entry_crcs
from picstore.storage.format.container import Container


@dataclass(frozen=True, slots=True)
class RecordShift:
    """How ids and labels of records differ from the stored ones.

    Attributes:
        first_id: added to ids.
        labels: the labels that take the place of 0, 1, …; empty where labels stay.
        ids_end: greater than any stored id, so that the ids of data sets stay apart; None for no limit.
    """

    first_id: int = 0
    labels: tuple[int, ...] = ()
    ids_end: int | None = None

    def __bool__(self) -> bool:
        return bool(self.first_id or self.labels)

    def after(self, earlier: RecordShift) -> RecordShift:
        """Make the shift of records that another one has shifted already."""
        labels = earlier.labels or tuple(range(len(self.labels)))
        mapped = self.map_labels(np.array(labels, np.int64)).tolist()
        return RecordShift(earlier.first_id + self.first_id, tuple(mapped), earlier.ids_end)

    def apply(self, container: Container) -> None:
        """Shift the records of a container that was just unpacked; damaged index entries stay as they are.

        UsageError for an id that is not below ``ids_end``: another data set's record would have the shifted one.
        """
        index = container.index
        sound = np.ones(len(index), np.bool_)
        if container.damage:  # the entries' checksums tell damaged entries from damaged images
            sound = index["entry_crc"] == entry_crcs(index)
        beyond = index["id"][sound] >= self.ids_end if self.ids_end is not None else sound[:0]
        if beyond.any():
            text = f"holds the id {index['id'][sound][beyond][0]}, more than its manifest says"
            raise UsageError(f"{container.ref.name} {text}; read its data set alone, not as one with others")
        if not self:
            return
        index = index.copy()
        index["id"][sound] += self.first_id
        index["label"][sound] = self.map_labels(index["label"][sound])
        if container.damage:
            index["entry_crc"][sound] = entry_crcs(index)[sound]
        container.index = container.held = index

    def map_labels(self, labels: I64) -> I64:
        """Shift labels; a label of no class, such as −1, stays."""
        if not self.labels:
            return labels
        named = (labels >= 0) & (labels < len(self.labels))
        return np.where(named, np.array(self.labels, np.int64)[np.where(named, labels, 0)], labels)


NO_SHIFT = RecordShift()
