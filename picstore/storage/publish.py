"""Publishing: writing the manifest that makes files a data set, or that edits a finished one (docs/format.md).

Files, index and edits are complete before the manifest names them.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.arrays import Table
from picstore.errors import NotADataset, UsageError
from picstore.storage.container_index import index_file, index_rows
from picstore.storage.edits.manifest_entries import Edits
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.file_summary import FileSummary
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import EDITS, INDEX, MANIFEST, Where, WritableLocation, locate_writable
from picstore.storage.manifest import FileEntry, Manifest, manifest_file, parse_manifest, read_manifest, with_uuid
from picstore.storage.manifest_writer import changed_meanwhile, edit_lock, replace_manifest, write_new_manifest
from picstore.storage.record_counts import RecordCounts, write_counts


def publish_dataset(
    root: Where, summaries: Sequence[FileSummary], *, counts: RecordCounts | None = None, **fields: Any
) -> Manifest:
    """Write the index of some files and the counts of their records, then the manifest, which makes a data set.

    ``counts`` are None if unknown. ``fields`` are the fields of :class:`Manifest` that cannot be counted: ``streams``,
    ``container_size``, ``classes`` …. Conflict if another data set has appeared.
    """
    root = locate_writable(root)
    rows = index_rows(summaries)
    manifest = _counted(rows, _file_entries(summaries), **fields)
    (root / INDEX).write(index_file(rows))
    _write_counts(root, manifest, counts)
    write_new_manifest(root, manifest)
    return manifest


def append_rows(
    manifest: Manifest, old: Table, summaries: Sequence[FileSummary], **fields: Any
) -> tuple[Manifest, bytes]:
    """Make the manifest of a data set with files appended, and the bytes of the index that it names.

    ``manifest`` is the present manifest, ``old`` the rows of its index; ``fields`` are the manifest's fields that
    change. The appended files have higher numbers than the present ones.
    """
    numbers = {summary.file for summary in summaries} & {entry.file for entry in manifest.files}
    if numbers:
        raise UsageError(f"files {min(numbers):06d} belong to the data set already; append others")
    rows = np.concatenate([old, index_rows(summaries)])
    raw = index_file(rows)
    index = f"{EDITS}/{hashlib.sha256(raw).hexdigest()[:16]}.idx"
    files = (*manifest.files, *_file_entries(summaries))
    counted = {"uuid", "images", "bytes", "containers", "index_crc32c", "files"}
    unchanged = {name: getattr(manifest, name) for name in Manifest.__slots__ if name not in counted}
    edits = replace(manifest.edits or Edits(), index=index)
    return _counted(rows, files, **{**unchanged, "edits": edits, **fields}), raw


def publish_edit(root: WritableLocation, origin: str, manifest: Manifest, counts: RecordCounts | None) -> None:
    """Replace the manifest of a data set, and keep the replaced one under its uuid as an earlier version.

    ``counts`` are of the new version's records, None if unknown.

    Raises:
        Conflict: the data set has another uuid than ``origin`` by now.
        UsageError: another process holds the lock of edits.
    """
    with edit_lock(root):
        try:
            raw = (root / MANIFEST).read_all(MAX_MANIFEST)
        except NotADataset:
            read_manifest(root)  # says why it is missing
            raise
        old = parse_manifest(raw, root / MANIFEST)
        if old.uuid == manifest.uuid:
            return
        if old.uuid != origin:
            raise changed_meanwhile(root)
        _write_counts(root, manifest, counts)
        (root / EDITS / f"{old.uuid}.json").write(manifest_file(old))
        replace_manifest(root, raw, manifest)


def keep_counts(root: WritableLocation, manifest: Manifest, counts: RecordCounts | None) -> None:
    """Write the counts of a finished data set, which lacks them or has wrong ones, if they are known.

    UsageError if another process holds the lock of edits, or ``edits/`` is a symbolic link.
    """
    with contextlib.nullcontext() if manifest.edits is None else edit_lock(root):
        _write_counts(root, manifest, counts)


def _write_counts(root: WritableLocation, manifest: Manifest, counts: RecordCounts | None) -> None:
    """Write the counts of a version if they are known, of all records; a damaged one has no label to count."""
    if counts is not None and counts.records == manifest.images_left:
        write_counts(root, manifest, counts)


def _file_entries(summaries: Sequence[FileSummary]) -> tuple[FileEntry, ...]:
    ordered = sorted(summaries, key=lambda s: (s.file, s.stream))
    return tuple(FileEntry(s.stream, s.file, s.size, s.records, s.crc) for s in ordered)


def _counted(rows: Table, files: tuple[FileEntry, ...], **fields: Any) -> Manifest:
    """Make the manifest of containers and files, with counts and uuid."""
    counted = Manifest(
        uuid="",
        images=sum(entry.records for entry in files),
        bytes=sum(entry.bytes for entry in files),
        containers=len(rows),
        index_crc32c=crc32c(rows.tobytes()),
        files=files,
        **fields,
    )
    return with_uuid(counted, rows)
