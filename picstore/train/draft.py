"""The first stage of a batch: which streams, sizes and labels go to which slot, before any pixel.

A slot is a position in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from picstore.errors import Corrupt, Damage
from picstore.storage.checksum import crc32c, masked
from picstore.storage.container import Container
from picstore.storage.dataset import Dataset
from picstore.storage.record import NO_SEGMENTS
from picstore.train.cut import Lengths, layouts_of
from picstore.train.plan import Ints, Samples
from picstore.train.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Source:
    """A data set as a loader or mux reads it; ``base`` is added to labels other than −1."""

    dataset: Dataset
    seed: int
    base: int = 0
    recipe: Recipe = field(default_factory=Recipe)


@dataclass(frozen=True, slots=True)
class Part:
    """The samples of a batch that come from one epoch of one source, and their slots, int64 (n,)."""

    source: int
    epoch: int
    samples: Samples
    slots: Ints


@dataclass(frozen=True, slots=True)
class Draft:
    """All that is known of a batch before pixels: arrays by slot.

    Attributes:
        jpegs: one stream a slot, views of the containers; dropped once the batch is filled.
        segments: the lengths of their restart segments, views too.
        layouts: int64 (n, 6), of the stored images, see ``cut.layouts_of``; the first two columns are their sizes.
        labels, ids: −1 where nothing of the record's container can be read.
        source: number of the data set.
        places: file and offset of the record.
        extras, attachments: what targets are made of: JSON, and fields by name; empty where none are asked for.
        lost: records of the plan for which another of their container was taken.
        problems: by slot, why it has no image.
    """

    jpegs: list[memoryview]
    segments: list[Lengths]
    layouts: Ints
    labels: Ints
    ids: Ints
    source: Ints
    places: list[tuple[str, int]]
    extras: list[bytes]
    attachments: list[dict[str, bytes | memoryview]]
    lost: list[Damage]
    problems: dict[int, Damage]

    @classmethod
    def empty(cls, count: int) -> Draft:
        """``count`` slots of which nothing is known."""
        return cls(
            jpegs=[memoryview(b"")] * count,
            segments=[NO_SEGMENTS] * count,
            layouts=np.ones((count, 6), dtype=np.int64),
            labels=np.full(count, -1, dtype=np.int64),
            ids=np.full(count, -1, dtype=np.int64),
            source=np.zeros(count, dtype=np.int64),
            places=[("", 0)] * count,
            extras=[b""] * count,
            attachments=[{}] * count,
            lost=[],
            problems={},
        )

    def __len__(self) -> int:
        return len(self.ids)

    def forget(self) -> None:
        """Drop the views that would keep containers in memory until the consumer takes the batch."""
        self.jpegs.clear()
        self.segments.clear()
        self.extras.clear()
        self.attachments.clear()


def make_draft(
    parts: Sequence[Part],
    loaded: dict[tuple[int, int], Container | Damage],
    *,
    sources: Sequence[Source],
) -> Draft:
    """Collect streams, sizes, labels and ids of a batch from its containers.

    Args:
        parts: together they have each slot once.
        loaded: containers by source and number, or why one cannot be read at all.
    """
    draft = Draft.empty(sum(len(part.slots) for part in parts))
    for part in parts:
        source = sources[part.source]
        draft.source[part.slots] = part.source
        for number in np.unique(part.samples.container):
            chosen = part.samples.container == number
            container = loaded[part.source, int(number)]
            slots, records = part.slots[chosen], part.samples.record[chosen]
            if isinstance(container, Damage):
                draft.problems.update((slot, container) for slot in slots.tolist())
                continue
            _collect(draft, container, slots, records, source=source)
        known = part.slots[draft.labels[part.slots] >= 0]
        draft.labels[known] += source.base
    return draft


def _collect(draft: Draft, container: Container, slots: Ints, records: Ints, *, source: Source) -> None:
    """Fill the slots of one container's records."""
    place = str(source.dataset.path / container.place.name)
    good = container.good[records]
    if not good.all():
        losses = [_loss(container, record, place) for record in records[~good].tolist()]
        if not container.good.any():
            draft.problems.update(zip(slots.tolist(), losses, strict=True))
            return
        draft.lost.extend(losses)
        records = _replacements(container, records)
    entries = container.index[records]
    for slot, offset, length in zip(slots, entries["offset"].tolist(), entries["length"].tolist(), strict=True):
        draft.places[slot] = (place, container.place.offset + offset)
        draft.jpegs[slot] = container.buffer[offset : offset + length]
    if container.segment_table is not None:
        pairs = zip(entries["segment_first"].tolist(), entries["segment_count"].tolist(), strict=True)
        for slot, (first, segments) in zip(slots, pairs, strict=True):
            draft.segments[slot] = container.segment_table[first : first + segments]
    draft.layouts[slots] = layouts_of(entries)
    draft.labels[slots] = entries["label"]
    draft.ids[slots] = entries["id"]
    if source.recipe.targets:
        _collect_targets(draft, container, slots, records, place=place)


def _collect_targets(draft: Draft, container: Container, slots: Ints, records: Ints, *, place: str) -> None:
    for slot, number in zip(slots.tolist(), records.tolist(), strict=True):
        try:
            record = container.record(number)
        except Damage as error:
            draft.problems[slot] = type(error)(error.what, place, error.offset)
            continue
        draft.extras[slot], draft.attachments[slot] = record.extra_json, record.attachments


def _replacements(container: Container, records: Ints) -> Ints:
    """The records, with the next good one of the container for each that is lost."""
    good = np.flatnonzero(container.good)
    return good[np.searchsorted(good, records) % len(good)]


def _loss(container: Container, record: int, place: str) -> Damage:
    """What to say of a lost record; its id and offset are known if its index entry is sound."""
    entry = container.index[record]
    start = container.place.offset
    if masked(crc32c(entry.tobytes()[:-4])) == entry["entry_crc"]:
        return Corrupt(f"record {entry['id']} fails its CRC", place, start + int(entry["offset"]))
    text = f"the index entry of record number {record} in container {container.place.ordinal} is damaged"
    return Corrupt(text, place, start)
