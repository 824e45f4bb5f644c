"""Several datasets read as one: the shifts of ids and labels, and the joined classes, columns and manifest.

Nothing is written. Each dataset has as many ranges of 2**40 ids as its own ids need, one after the other, so that ids,
and the random transforms keyed by ids, differ between datasets. Labels follow the names of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from picstore.arrays import I64, Array, Table
from picstore.errors import UsageError
from picstore.storage.class_names import JoinedNames
from picstore.storage.edits.columns import LABEL, Column, FileBytes, Values, make_column
from picstore.storage.edits.edit_entries import ColumnEntry, Edits, pack_npy_file
from picstore.storage.format.checksum import crc32c, entry_crcs
from picstore.storage.format.container import Container
from picstore.storage.manifest import Manifest, References, with_uuid

_ID_RANGE = 1 << 40
_MAX_RANGES = (1 << 63) // _ID_RANGE


@dataclass(frozen=True, slots=True)
class RecordShift:
    """Change from a dataset's stored ids and labels to those in a joined dataset.

    Attributes:
        first_id: number that is added to each id.
        labels: new labels, indexed by stored label; empty if labels do not change.
        ids_end: number above all stored ids; it keeps shifted ids of different datasets apart. None for no limit.
    """

    first_id: int = 0
    labels: tuple[int, ...] = ()
    ids_end: int | None = None

    def __bool__(self) -> bool:
        return bool(self.first_id or self.labels)

    def after(self, earlier: RecordShift) -> RecordShift:
        """Return one shift that has the effect of the shift ``earlier`` followed by this shift."""
        labels = earlier.labels or tuple(range(len(self.labels)))
        mapped = self.map_labels(np.array(labels, np.int64)).tolist()
        return RecordShift(earlier.first_id + self.first_id, tuple(mapped), earlier.ids_end)

    def apply(self, container: Container) -> None:
        """Change ids and labels in the index of a newly unpacked container, except in damaged entries.

        Raise UsageError if an id is not below ``ids_end``; the shifted id may be that of another dataset's record.
        """
        index = container.index
        sound = np.ones(len(index), np.bool_)
        if container.damage:  # Change each entry whose own checksum is right, even if its image is damaged.
            sound = index["entry_crc"] == entry_crcs(index)
        beyond = index["id"][sound] >= self.ids_end if self.ids_end is not None else sound[:0]
        if beyond.any():
            text = f"holds the id {index['id'][sound][beyond][0]}, more than its manifest says"
            raise UsageError(f"{container.ref.name} {text}; read its dataset alone, not as one with others")
        if not self:
            return
        index = index.copy()
        index["id"][sound] += self.first_id
        index["label"][sound] = self.map_labels(index["label"][sound])
        if container.damage:
            index["entry_crc"][sound] = entry_crcs(index)[sound]
        container.index = container.held = index

    def map_labels(self, labels: I64) -> I64:
        """Map a dataset's stored labels to those in the joined dataset; keep labels without a class, such as −1."""
        if not self.labels:
            return labels
        named = (labels >= 0) & (labels < len(self.labels))
        return np.where(named, np.array(self.labels, np.int64)[np.where(named, labels, 0)], labels)


NO_SHIFT = RecordShift()


def align(manifests: Sequence[Manifest], ids_ends: Sequence[int], names: Sequence[str]) -> list[RecordShift]:
    """Return for each dataset the RecordShift from its ids and labels to those in the joined dataset.

    ``ids_ends`` holds for each dataset a number above all its ids; ``names`` holds the datasets' names for messages.
    Raise UsageError if only some datasets have class names, a class name is ambiguous, attachments differ, or shifted
    ids exceed 63 bits.
    """
    for manifest, name in zip(manifests, names, strict=True):
        if manifest.attachments != manifests[0].attachments:
            own, first = manifest.attachments, manifests[0].attachments
            raise UsageError(f"{name} has the attachments {list(own)}, {names[0]} has {list(first)}; they must agree")
        if manifest.maps != manifests[0].maps:
            raise UsageError(f"{name} and {names[0]} state other maps: dtype, channels, scale and so on must agree")
        if bool(manifest.classes) != bool(manifests[0].classes):
            raise UsageError(f"only one of {names[0]} and {name} has names of classes; give the other one names too")
    joined = JoinedNames()
    shifts = []
    ranges = [max(1, -(-end // _ID_RANGE)) for end in ids_ends]
    if sum(ranges) > _MAX_RANGES:
        largest, name = max(zip(ids_ends, names, strict=True))
        text = f"the ids of {' + '.join(names)} do not fit into 63 bits one after the other"
        raise UsageError(f"{text}: {name} alone has ids up to {largest - 1}; convert it again for ids from 0 on")
    for start, width, manifest in zip(accumulate(ranges, initial=0), ranges, manifests, strict=False):
        numbers = joined.add(manifest.classes)
        labels = () if numbers == tuple(range(len(numbers))) else numbers
        shifts.append(RecordShift(start * _ID_RANGE, labels, width * _ID_RANGE))
    return shifts


def join_classes(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    """Return the classes of all datasets, joined by name, in the order of their first occurrence."""
    joined = JoinedNames()
    for manifest in manifests:
        joined.add(manifest.classes)
    return tuple(joined.names)


def join_columns(columns: Sequence[dict[str, Column]], shifts: Sequence[RecordShift]) -> tuple[Edits, FileBytes]:
    """Join the columns of datasets by name; raise UsageError if columns with the same name differ in kind or shape.

    A value is left out if its id is not below the ``ids_end`` of its dataset's shift, because the shifted id may be
    that of another dataset's record.
    """
    entries: list[ColumnEntry] = []
    files: FileBytes = {}
    for name in sorted({name for each in columns for name in each}):
        found = [(each[name], shift) for each, shift in zip(columns, shifts, strict=True) if name in each]
        if len({("text",) if column.ends is not None else column.values.shape[1:] for column, _ in found}) > 1:
            raise UsageError(f"the column {name!r} differs in kind or shape between datasets; make it the same in all")
        own = [_own_values(column, shift) for column, shift in found]
        ids = np.concatenate([ids + shift.first_id for (ids, _), (_, shift) in zip(own, found, strict=True)])
        if found[0][0].ends is not None:
            entry, new_files = make_column(name, ids, [text for _, texts in own for text in texts])
        else:
            numbers = [np.asarray(values) for _, values in own]
            if name == LABEL:
                numbers = [shift.map_labels(each) for each, (_, shift) in zip(numbers, found, strict=True)]
            entry, new_files = make_column(name, ids, np.concatenate(numbers))
        entries.append(entry)
        files.update(new_files)
    return Edits(columns=tuple(entries)), files


def _own_values(column: Column, shift: RecordShift) -> tuple[I64, Values]:
    ids = column.ids
    if shift.ids_end is not None:
        ids = ids[(ids >= 0) & (ids < shift.ids_end)]
    return column.of(ids)


def join_manifests(
    manifests: Sequence[Manifest], rows: Table, deleted: Array, columns: tuple[Edits, FileBytes]
) -> tuple[Manifest, FileBytes]:
    """Return the manifest of a joined dataset, and the .npy files of its edits by name.

    ``rows`` are the index rows of all datasets, in the order of ``manifests``. ``deleted`` holds each deleted record's
    position among the stored records of all datasets. ``columns`` is the result of :func:`join_columns`.
    """
    npy_file, raw = pack_npy_file(deleted.astype("<i8"))
    edits, files = columns
    edits = Edits(deleted=len(deleted), tombstones=npy_file if len(deleted) else None, columns=edits.columns)
    encode, maps = manifests[0].encode, manifests[0].provenance.get("maps")
    provenance = {"verb": "concat", "parents": [manifest.uuid for manifest in manifests]}
    provenance |= {"maps": maps} if maps else {}
    indexes = [manifest.references for manifest in manifests if manifest.references is not None]
    references = References(" + ".join(each.root for each in indexes), sum(each.foreign for each in indexes))
    joined = Manifest(
        uuid="",
        images=sum(manifest.images for manifest in manifests),
        bytes=sum(manifest.bytes for manifest in manifests),
        streams=1 + int(rows["stream"].max(initial=0)),
        containers=len(rows),
        container_size=max(manifest.container_size for manifest in manifests),
        classes=join_classes(manifests),
        attachments=manifests[0].attachments,
        encode=encode if all(manifest.encode == encode for manifest in manifests) else None,
        provenance=provenance,
        index_crc32c=crc32c(rows.tobytes()),
        edits=edits,
        references=references if indexes else None,
    )
    return with_uuid(joined, rows), {**files, npy_file.file: raw}
