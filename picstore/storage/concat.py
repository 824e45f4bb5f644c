"""What several data sets have in common when they are read as one: classes, columns, manifest. Nothing is written.

Ids of the k-th data set are raised by k · 2**40, so that ids, and the random transforms that are keyed by them, differ
between data sets. Labels follow the names of the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from picstore.arrays import Array, Table
from picstore.errors import UsageError
from picstore.storage.edits.columns import LABEL, Column, FileBytes, make_column
from picstore.storage.edits.manifest_entries import ColumnEntry, Edits
from picstore.storage.edits.npy_files import pack_npy_file
from picstore.storage.format.checksum import crc32c
from picstore.storage.manifest import Manifest, References, with_uuid
from picstore.storage.record_shift import RecordShift

_ID_STEP = 1 << 40


def align(manifests: Sequence[Manifest], slots: Sequence[int], names: Sequence[str]) -> list[RecordShift]:
    """Find how the records of data sets differ in one of them all.

    Args:
        manifests: of the data sets.
        slots: of each, how many data sets it consists of, each with a range of ids.
        names: for messages.

    Raises:
        UsageError: some have names of classes and others none, or their attachments differ.
    """
    for manifest, name in zip(manifests, names, strict=True):
        if manifest.attachments != manifests[0].attachments:
            own, first = manifest.attachments, manifests[0].attachments
            raise UsageError(f"{name} has the attachments {list(own)}, {names[0]} has {list(first)}; they must agree")
        if bool(manifest.classes) != bool(manifests[0].classes):
            raise UsageError(f"one of {names[0]} and {name} has names of classes, the other none; give it some")
    classes = join_classes(manifests)
    numbers = dict(zip(classes, range(len(classes)), strict=True))
    shifts = []
    for slot, manifest in zip(accumulate(slots, initial=0), manifests, strict=False):
        stay = manifest.classes == classes[: len(manifest.classes)]
        labels = () if stay else tuple(numbers[each] for each in manifest.classes)
        shifts.append(RecordShift(slot * _ID_STEP, labels))
    return shifts


def join_classes(manifests: Sequence[Manifest]) -> tuple[str, ...]:
    """List the classes of all data sets, each once, in the order in which they first come."""
    return tuple(dict.fromkeys(name for manifest in manifests for name in manifest.classes))


def join_columns(columns: Sequence[dict[str, Column]], shifts: Sequence[RecordShift]) -> tuple[Edits, FileBytes]:
    """Join the columns of data sets, by name; UsageError where they do not go together."""
    entries: list[ColumnEntry] = []
    files: FileBytes = {}
    for name in sorted({name for each in columns for name in each}):
        found = [(each[name], shift) for each, shift in zip(columns, shifts, strict=True) if name in each]
        if len({("text",) if column.ends is not None else column.values.shape[1:] for column, _ in found}) > 1:
            raise UsageError(f"the column {name!r} is not of one kind and shape in all data sets")
        ids = np.concatenate([column.ids + shift.first_id for column, shift in found])
        if found[0][0].ends is not None:
            entry, new_files = make_column(name, ids, [text for column, _ in found for text in column.take(column.ids)])
        else:
            numbers = [shift.map_labels(c.values) if name == LABEL else c.values for c, shift in found]
            entry, new_files = make_column(name, ids, np.concatenate(numbers))
        entries.append(entry)
        files.update(new_files)
    return Edits(columns=tuple(entries)), files


def join_manifests(
    manifests: Sequence[Manifest], rows: Table, deleted: Array, columns: tuple[Edits, FileBytes]
) -> tuple[Manifest, FileBytes]:
    """Make the manifest of several data sets as one, and the .npy files of its edits.

    Args:
        manifests: of the data sets.
        rows: ``layout.INDEX_ROW``, the containers of all.
        deleted: numbers in stored order of the deleted records of all.
        columns: those of all.
    """
    npy_file, raw = pack_npy_file(deleted.astype("<i8"))
    edits, files = columns
    edits = Edits(deleted=len(deleted), tombstones=npy_file if len(deleted) else None, columns=edits.columns)
    encode = manifests[0].encode
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
        provenance={"verb": "concat", "parents": [manifest.uuid for manifest in manifests]},
        index_crc32c=crc32c(rows.tobytes()),
        edits=edits,
        references=references if indexes else None,
    )
    return with_uuid(joined, rows), {**files, npy_file.file: raw}
