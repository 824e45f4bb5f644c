"""The first stage of a batch: which streams, sizes and labels go to which slot, before any pixel.

A slot is a position in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from picstore.arrays import I64, U16, U64, Table
from picstore.errors import Corrupt, Damage
from picstore.jpeg.tiles import mcu_size
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.format.container import Container
from picstore.storage.format.layout import ENTRY, SAMPLINGS, SEGMENT
from picstore.storage.format.record import NO_SEGMENTS
from picstore.storage.location.resolve import Location
from picstore.train.order.requests import Part, Source

Lengths: TypeAlias = U16
# MCU sizes by code of sampling; none for those of which the index says nothing.
_MCU_SIZES = np.array(
    [(0, 0)] + [mcu_size(components=1 if name == "grey" else 3, subsampling=name) for name in SAMPLINGS[1:]]
)
Loaded: TypeAlias = "Container | Damage"  # or why nothing of it can be read


@dataclass(frozen=True, slots=True)
class BatchRecords:
    """All that is known of a batch before pixels: arrays by slot.

    Attributes:
        containers: those that hold the records; dropped once the batch is filled.
        container: int64 (n,), which of these has a slot's record, −1 for none.
        folders: of the data sets, by source.
        entries: ``layout.ENTRY`` (n,), of the containers' indexes; zeros where there is none.
        addresses, sizes: where the streams and the lengths of their segments lie, see ``cut.TiledJpegs``; sizes are 0
            where there are none.
        layouts: int64 (n, 6), of the stored images, see ``cut.layouts_of``; the first two columns are their sizes.
        labels, ids: −1 where nothing of the record's container can be read.
        source: number of the data set.
        extras, attachments: what targets are made of: JSON, and fields by name; empty where none are asked for.
        lost: records of the plan for which another of their container was taken.
        problems: by slot, why it has no image.
    """

    containers: list[Container]
    container: I64
    folders: tuple[Location, ...]
    entries: Table
    addresses: U64
    sizes: I64
    layouts: I64
    labels: I64
    ids: I64
    source: I64
    extras: list[bytes]
    attachments: list[dict[str, bytes | memoryview]]
    lost: list[Damage]
    problems: dict[int, Damage]

    @classmethod
    def empty(cls, count: int, folders: Iterable[Location]) -> BatchRecords:
        """``count`` slots of which nothing is known."""
        return cls(
            containers=[],
            container=np.full(count, -1, dtype=np.int64),
            folders=tuple(folders),
            entries=np.zeros(count, dtype=ENTRY),
            addresses=np.zeros((count, 2), dtype=np.uint64),
            sizes=np.zeros((count, 2), dtype=np.int64),
            layouts=np.ones((count, 6), dtype=np.int64),
            labels=np.full(count, -1, dtype=np.int64),
            ids=np.full(count, -1, dtype=np.int64),
            source=np.zeros(count, dtype=np.int64),
            extras=[b""] * count,
            attachments=[{}] * count,
            lost=[],
            problems={},
        )

    def __len__(self) -> int:
        return len(self.ids)

    def jpeg(self, slot: int) -> memoryview:
        """A slot's stream, a view of its container; empty where there is none."""
        if not self.sizes[slot, 0]:
            return memoryview(b"")
        buffer: memoryview = self.containers[self.container[slot]].buffer
        offset = int(self.entries["offset"][slot])
        return buffer[offset : offset + int(self.sizes[slot, 0])]

    def lengths(self, slot: int) -> Lengths:
        """Those of the restart segments of a slot's stream, a view too; empty where they are not known."""
        table: Lengths | None = None
        if self.sizes[slot, 1]:
            table = self.containers[self.container[slot]].segment_table
        if table is None:
            return NO_SEGMENTS
        first = int(self.entries["segment_first"][slot])
        return table[first : first + int(self.sizes[slot, 1])]

    @property
    def jpegs(self) -> list[memoryview]:
        """The streams of all slots."""
        return [self.jpeg(slot) for slot in range(len(self))]

    @property
    def segments(self) -> list[Lengths]:
        """The lengths of the segments of all slots."""
        return [self.lengths(slot) for slot in range(len(self))]

    def place(self, slot: int) -> tuple[str, int]:
        """File and offset of a record that is there."""
        where = self.containers[self.container[slot]].ref
        return str(self.folders[self.source[slot]] / where.name), where.offset + int(self.entries["offset"][slot])

    def forget(self) -> None:
        """Drop what would keep containers in memory until the consumer takes the batch."""
        self.sizes[:] = 0  # so that nothing follows the addresses any more
        self.containers.clear()
        self.extras.clear()
        self.attachments.clear()


def layouts_of(entries: Table) -> I64:
    """What ``jpeg.cut`` must know of images, from their index entries: int64 (n, 6)."""
    sizes = _MCU_SIZES[entries["sampling"]]
    columns = (entries["width"], entries["height"], sizes[:, 0], sizes[:, 1])
    return np.stack([*columns, entries["restart_interval"], entries["header_length"]], axis=1).astype(np.int64)


def gather_records(
    parts: Sequence[Part],
    loaded: dict[tuple[int, int], Loaded],
    *,
    sources: Sequence[Source],
) -> BatchRecords:
    """Collect streams, sizes, labels and ids of a batch from its containers.

    Args:
        parts: together they have each slot once.
        loaded: containers by source and number, or why one cannot be read at all.
    """
    draft = BatchRecords.empty(sum(len(part.slots) for part in parts), (source.dataset.path for source in sources))
    for part in parts:
        _collect(draft, part, loaded, source=sources[part.source])
    return draft


def _collect(draft: BatchRecords, part: Part, loaded: dict[tuple[int, int], Loaded], *, source: Source) -> None:
    """Fill the slots of a part. A batch has two or three records of a container, so what is done for each counts."""
    draft.source[part.slots] = part.source
    order = np.argsort(part.samples.container, kind="stable")
    numbers, records, slots = part.samples.container[order], part.samples.record[order], part.slots[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    taken = []
    for number, start, end in zip(numbers[starts].tolist(), starts, [*starts[1:], len(slots)], strict=True):
        container, here, mine = loaded[part.source, number], slots[start:end], records[start:end]
        if isinstance(container, Damage):
            draft.problems.update((slot, container) for slot in here.tolist())
            continue
        if container.damage:
            place = str(source.dataset.path / container.ref.name)
            good = container.good[mine]
            losses = [_loss(container, record, place) for record in mine[~good].tolist()]
            left = np.flatnonzero(container.good & source.dataset.live.mask(number))
            if not len(left):
                draft.problems.update(zip(here.tolist(), losses, strict=True))
                continue
            draft.lost.extend(losses)
            mine = left[np.searchsorted(left, mine) % len(left)]  # for each that is lost the next one that is not
        taken.append((container, here, mine))
    if taken:
        _enter(draft, taken, source=source)
    if source.recipe.targets:
        for container, here, mine in taken:
            _collect_targets(draft, container, here, mine, place=str(source.dataset.path / container.ref.name))


def _enter(draft: BatchRecords, taken: Sequence[tuple[Container, I64, I64]], *, source: Source) -> None:
    """Fill the slots that were found, from containers, slots and records."""
    slots = np.concatenate([here for _, here, _ in taken])
    counts = [len(here) for _, here, _ in taken]
    numbers = range(len(draft.containers), len(draft.containers) + len(taken))
    draft.containers.extend(container for container, _, _ in taken)
    draft.container[slots] = np.repeat(numbers, counts)
    # As bytes: to concatenate arrays of structures NumPy takes 0.5 ms.
    pieces = [container.index.take(mine).tobytes() for container, _, mine in taken]
    entries = np.frombuffer(b"".join(pieces), dtype=ENTRY)
    draft.entries[slots] = entries
    begins = np.array([container.addresses() for container, _, _ in taken], dtype=np.uint64)
    begins = np.repeat(begins, counts, axis=0)
    draft.addresses[slots, 0] = begins[:, 0] + entries["offset"]
    draft.addresses[slots, 1] = begins[:, 1] + entries["segment_first"] * np.uint64(SEGMENT.itemsize)
    draft.sizes[slots, 0] = entries["length"]
    draft.sizes[slots, 1] = np.where(begins[:, 1] > 0, entries["segment_count"], 0)
    draft.layouts[slots] = layouts_of(entries)
    labels = source.dataset.labels(entries["id"], entries["label"])
    draft.labels[slots] = labels + np.where(labels >= 0, source.base, 0)
    draft.ids[slots] = entries["id"]


def _collect_targets(draft: BatchRecords, container: Container, slots: I64, records: I64, *, place: str) -> None:
    for slot, number in zip(slots.tolist(), records.tolist(), strict=True):
        try:
            record = container.record(number)
        except Damage as error:
            draft.problems[slot] = type(error)(error.what, place, error.offset)
            continue
        draft.extras[slot], draft.attachments[slot] = record.extra_json, record.attachments


def _loss(container: Container, record: int, place: str) -> Damage:
    """What to say of a lost record; its id and offset are known if its index entry is sound."""
    entry = container.index[record]
    start = container.ref.offset
    if masked(crc32c(entry.tobytes()[:-4])) == entry["entry_crc"]:
        return Corrupt(f"record {entry['id']} fails its CRC", place, start + int(entry["offset"]))
    text = f"the index entry of record number {record} in container {container.ref.ordinal} is damaged"
    return Corrupt(text, place, start)
