"""Record counts, ``picstore.counts``: the number of records with each label (docs/format.md, "Record counts").

Counts could be computed from the records; they are stored so that readers need not read the indexes of all containers.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import I64, Bools
from picstore.errors import Corrupt, Damage, NotADataset, TooLarge, UnsupportedVersion, UsageError, counted
from picstore.storage.edits.columns import LABEL
from picstore.storage.edits.edit_entries import Edits
from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import Container
from picstore.storage.location.resolve import COUNTS, EDITS, Location, Root, WritableLocation, map_concurrently, read_at
from picstore.storage.manifest import Manifest, read_manifest

NO_UUID = str(uuid.UUID(int=0))  # uuid in a file with counts of only a part of a dataset, because a part has no uuid
_MERGED = 1 << 16  # number of (label, count) pairs to collect before :meth:`RecordCounts.join` adds them up by label

Relabel: TypeAlias = Callable[[I64, I64], I64]  # returns edited labels, given the records' ids and stored labels


@dataclass(frozen=True, slots=True, eq=False)
class RecordCounts:
    """Number of records with each label, without deleted records.

    Attributes:
        labels: labels that occur, int64 (n,), ascending.
        counts: number of records with each label, int64 (n,), at least 1.
        ids_end: number above the ids of all stored records, also of deleted ones.
    """

    labels: I64
    counts: I64
    ids_end: int = 0

    @classmethod
    def of(cls, counts: Mapping[int, int], *, ids_end: int = 0) -> RecordCounts:
        labels = sorted(counts)
        numbers = [counts[label] for label in labels]
        return cls(np.array(labels, dtype=np.int64), np.array(numbers, dtype=np.int64), ids_end)

    @classmethod
    def join(cls, parts: Iterable[RecordCounts]) -> RecordCounts:
        """Add the counts of parts of a dataset by label; memory grows with the number of labels, not of parts."""
        total, waiting, size = cls.of({}), [], 0
        for part in parts:
            waiting.append(part)
            size += len(part.labels)
            if size > len(total.labels) + _MERGED:
                total, waiting, size = _merge([total, *waiting]), [], 0
        return _merge([total, *waiting])

    @property
    def records(self) -> int:
        return int(self.counts.sum())

    def same(self, other: RecordCounts) -> bool:
        return np.array_equal(self.labels, other.labels) and np.array_equal(self.counts, other.counts)


def _merge(parts: list[RecordCounts]) -> RecordCounts:
    labels = np.concatenate([part.labels for part in parts])
    order = np.argsort(labels, kind="stable")  # A stable sort merges ascending runs fast.
    labels = labels[order]
    firsts = np.flatnonzero(np.append(True, labels[1:] != labels[:-1])[: len(labels)])
    counts = np.concatenate([part.counts for part in parts])[order]
    summed = np.add.reduceat(counts, firsts) if len(firsts) else counts
    return RecordCounts(labels[firsts], summed, max(part.ids_end for part in parts))


def count_records(
    numbers: Iterable[int],
    index: Callable[[int], Container],
    *,
    live: Callable[[int], Bools],
    relabel: Relabel | None = None,
) -> RecordCounts:
    """Count the live records of the containers ``numbers`` by label; skip damaged index entries.

    ``index`` reads a container without its payload, ``live`` marks its live (not deleted) records, and ``relabel``
    returns their edited labels.
    """

    def count(number: int) -> RecordCounts:
        container = index(number)
        entries = container.index[container.good]
        ids_end = 1 + int(entries["id"].max(initial=0))
        entries = entries[live(number)[container.good]]
        found = entries["label"] if relabel is None else relabel(entries["id"], entries["label"])
        return RecordCounts(*np.unique(found, return_counts=True), ids_end)

    return RecordCounts.join(map_concurrently(count, numbers))


def counts_name(manifest: Manifest) -> str:
    """Return the path, in the dataset, of the file with a version's record counts; each version has its own file."""
    return COUNTS if manifest.edits is None else f"{EDITS}/{manifest.uuid}.counts"


def counts_file(counts: RecordCounts, version: str = NO_UUID) -> bytes:
    """Serialize the counts of the version with uuid ``version``: ``layout.CountsHeader``, then a row per label."""
    rows = np.zeros(len(counts.labels), dtype=layout.COUNT_ROW)
    rows["label"], rows["records"] = counts.labels, counts.counts
    raw = rows.tobytes()
    header = layout.CountsHeader(
        version=layout.FORMAT_VERSION,
        row_size=layout.COUNT_ROW.itemsize,
        rows=len(rows),
        records=counts.records,
        ids_end=min(counts.ids_end, (1 << 64) - 1),
        uuid=uuid.UUID(version).bytes,
        rows_crc=crc32c(raw),
    )
    return header.pack() + raw


def write_counts(root: WritableLocation, manifest: Manifest, counts: RecordCounts) -> None:
    """Write the record counts of a version of a dataset; call this before the version's manifest is written."""
    (root / counts_name(manifest)).write(counts_file(counts, manifest.uuid))


def read_counts(root: Root, manifest: Manifest) -> RecordCounts:
    """Read the record counts stored with a version of a dataset.

    Raises:
        NotADataset: the counts are missing, or are of another version because an early picstore did not update them.
        Damage: the counts are damaged.
        UnsupportedVersion: a later picstore wrote the counts.
    """
    return read_counts_file(root / counts_name(manifest), records=manifest.images_left, version=manifest.uuid)


def read_counts_file(path: Location, *, records: int, version: str = NO_UUID) -> RecordCounts:
    """Read the file with a dataset's counts; ``records`` is its number of records; errors: see :func:`read_counts`."""
    file = str(path)
    header = layout.CountsHeader.unpack(
        read_at(path, 0, min(layout.SEALED, path.size()), file=file), file=file, offset=0
    )
    layout.check_version(header.version, file)
    if header.row_size != layout.COUNT_ROW.itemsize:
        raise Corrupt(f"the counts have rows of {header.row_size} bytes", file)
    if header.uuid != uuid.UUID(version).bytes:
        raise NotADataset(f"{file} has the counts of another version of the dataset")
    if header.records != records:
        raise Corrupt(f"the counts are of {counted(header.records, 'record')}; the dataset has {records}", file)
    if header.rows > records:  # More labels than records are impossible, because each label listed has a record.
        raise TooLarge(f"the counts have {counted(header.rows, 'row')} for {counted(records, 'record')}", file)
    raw = read_at(path, layout.SEALED, header.rows * layout.COUNT_ROW.itemsize, file=file)
    if crc32c(raw) != header.rows_crc:
        raise Corrupt("the counts fail their CRC", file, layout.SEALED)
    rows = np.frombuffer(raw, dtype=layout.COUNT_ROW)
    sound = not (np.diff(rows["label"]) <= 0).any() and ((rows["records"] > 0) & (rows["records"] <= records)).all()
    if not sound or rows["records"].sum(dtype=np.float64) > layout.MAX_FILE or int(rows["records"].sum()) != records:
        raise Corrupt("the counts do not add up to the records", file, layout.SEALED)
    return RecordCounts(rows["label"].astype(np.int64), rows["records"].astype(np.int64), header.ids_end)


def counts_of_same_labels(root: Location, manifest: Manifest, origin: str) -> RecordCounts | None:
    """Return the counts stored for version ``origin`` if ``manifest``, edited from it, has the same records and labels.

    Return None if records or labels differ, or if the counts cannot be read.
    """
    with contextlib.suppress(NotADataset, Damage, UnsupportedVersion, UsageError):
        earlier = read_manifest(root, origin)
        if _labels_origin(earlier) == _labels_origin(manifest):
            return read_counts(root, earlier)
    return None


def _labels_origin(manifest: Manifest) -> tuple[Any, ...]:
    """Return fields of a manifest; two versions of a dataset with equal fields have the same records and labels."""
    edits = manifest.edits or Edits()
    labels = [entry for entry in edits.columns if entry.name == LABEL]
    return manifest.index_crc32c, manifest.files, edits.tombstones, labels


def known_ids_end(root: Location, manifest: Manifest, origin: str) -> int | None:
    """Return a number above all ids of the version ``manifest`` without reading the ids; None if that is impossible.

    For a converted dataset, the number is the count of inputs, because a conversion numbers inputs from 0 on. For a
    copy of joined datasets, it is ``ids_end`` in the counts of ``origin``, the version from which the copy was edited.
    """
    provenance = manifest.provenance
    if provenance.get("verb") != "concat" and "inputs" in provenance:
        inputs: list[int] = [provenance["inputs"], *(each["inputs"] for each in provenance.get("appended", ()))]
        return max(1, sum(inputs))
    with contextlib.suppress(NotADataset, Damage, UnsupportedVersion, UsageError):
        return read_counts(root, read_manifest(root, origin)).ids_end
    return None


def end_of_ids(ids: I64) -> int:
    """Return a number above all ids. ``ids``, int64, has ids from 2**63 on as negative values, and −1 for damage."""
    return 1 + int(ids[ids != -1].view(np.uint64).max(initial=0))
