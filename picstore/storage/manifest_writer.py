"""Writing of the manifest: publishing a new dataset, replacing the manifest by an edit, restoring it from its copy.

Files, index and edits are complete before the manifest names them (docs/format.md, "Copy of the manifest"). The copy is
written first, then ``picstore.json``, which alone makes a version valid. An interruption between the two writes leaves
a copy that is newer, never an older one, which would bring deleted records back. A lock excludes other edits.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.arrays import Table
from picstore.errors import (
    Conflict,
    Corrupt,
    Damage,
    NotADataset,
    PicstoreError,
    Unfinished,
    UnsupportedVersion,
    UsageError,
)
from picstore.storage.edits.edit_entries import Edits, own_edits_folder
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import FileSummary, index_file, index_rows
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import (
    COPY,
    COUNTS,
    EDITS,
    INDEX,
    LOCK,
    MANIFEST,
    Location,
    Where,
    WritableLocation,
    locate_writable,
)
from picstore.storage.manifest import (
    FileEntry,
    Manifest,
    holds_crc,
    manifest_file,
    parse_manifest,
    read_manifest,
    read_manifest_file,
    with_uuid,
)
from picstore.storage.record_counts import RecordCounts, write_counts

_LOCK_WAIT = 60.0  # seconds to wait for the lock of edits, which an edit holds only for a few short writes
DAMAGED = f"{MANIFEST}.damaged"  # name to which `repair` moves a damaged manifest


def publish_dataset(
    root: Where, summaries: Sequence[FileSummary], *, counts: RecordCounts | None = None, **fields: Any
) -> Manifest:
    """Write index and record counts of complete files of containers, then the manifest, which makes them a dataset.

    ``counts`` is None if the counts are unknown. ``fields`` are the fields of :class:`Manifest` that the files do not
    determine, such as ``classes``. Raise Conflict if the folder now holds another dataset.
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
    """Return the manifest of a dataset to which files are appended, and the bytes of the new index.

    ``manifest`` is the present manifest, ``old`` holds its index rows, ``summaries`` describe the appended files, and
    ``fields`` are further fields to change. Appended files must have higher numbers than present files; raise
    UsageError for equal numbers.
    """
    numbers = {summary.file for summary in summaries} & {entry.file for entry in manifest.files}
    if numbers:
        raise UsageError(f"files {min(numbers):06d} belong to the dataset already; append others")
    rows = np.concatenate([old, index_rows(summaries)])
    raw = index_file(rows)
    index = f"{EDITS}/{hashlib.sha256(raw).hexdigest()[:16]}.idx"
    files = (*manifest.files, *_file_entries(summaries))
    counted = {"uuid", "images", "bytes", "containers", "index_crc32c", "files"}
    unchanged = {name: getattr(manifest, name) for name in Manifest.__slots__ if name not in counted}
    edits = replace(manifest.edits or Edits(), index=index)
    return _counted(rows, files, **{**unchanged, "edits": edits, **fields}), raw


def publish_edit(root: WritableLocation, origin: str, manifest: Manifest, counts: RecordCounts | None) -> None:
    """Replace a dataset's manifest by ``manifest``, and keep the old one under its uuid as an earlier version.

    ``counts`` are the new version's record counts, None if unknown. Raise Conflict if the dataset's uuid is not
    ``origin`` any more; other errors: see :func:`edit_lock`.
    """
    with edit_lock(root):
        try:
            raw = (root / MANIFEST).read_all(MAX_MANIFEST)
        except NotADataset:
            read_manifest(root)  # Raise the error of this call, which states why the manifest is missing.
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
    """Write missing or wrong record counts of a finished dataset anew; do nothing if ``counts`` is None.

    Raise UsageError if another process holds the lock of edits, or ``edits/`` is a symbolic link.
    """
    with contextlib.nullcontext() if manifest.edits is None else edit_lock(root):
        _write_counts(root, manifest, counts)


def _write_counts(root: WritableLocation, manifest: Manifest, counts: RecordCounts | None) -> None:
    """Write a version's record counts; do nothing if they are None, or lack damaged records, whose label is unknown."""
    if counts is not None and counts.records == manifest.images_left:
        write_counts(root, manifest, counts)


def _file_entries(summaries: Sequence[FileSummary]) -> tuple[FileEntry, ...]:
    ordered = sorted(summaries, key=lambda s: (s.file, s.stream))
    return tuple(FileEntry(s.stream, s.file, s.size, s.records, s.crc) for s in ordered)


def _counted(rows: Table, files: tuple[FileEntry, ...], **fields: Any) -> Manifest:
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


def write_new_manifest(root: WritableLocation, manifest: Manifest) -> None:
    """Write the copy of a new dataset's manifest, then the manifest; raise Conflict if another manifest exists."""
    raw = manifest_file(manifest)
    if not (root / MANIFEST).is_file():
        (root / COPY).write(raw)
    if not (root / MANIFEST).write_new(raw):
        copy_manifest(root)
        if read_manifest(root) != manifest:
            raise Conflict(f"another process has made a dataset in {root} meanwhile; choose another destination")


def replace_manifest(root: WritableLocation, old: bytes, manifest: Manifest) -> None:
    """Replace a manifest's copy, then the manifest; raise Conflict unless the present manifest is ``old``."""
    raw = manifest_file(manifest)
    (root / COPY).write(raw)
    if not (root / MANIFEST).replace(raw, expected=old):
        copy_manifest(root)
        raise changed_meanwhile(root)


def changed_meanwhile(root: Location) -> Conflict:
    """Return the error to raise if another process has edited the dataset since this process opened it."""
    return Conflict(f"{root} was edited since it was opened; open it again and repeat the change")


def copy_manifest(root: WritableLocation) -> None:
    """Replace the manifest's copy by the manifest; repeat this if another process replaces the manifest meanwhile."""
    raw = None
    while raw != (raw := (root / MANIFEST).read_all(MAX_MANIFEST)):
        (root / COPY).write(raw)


def remove_manifest(root: WritableLocation, manifest: Manifest) -> None:
    """Make a dataset unfinished: remove first the manifest's copy, then the manifest, then the record counts.

    Raise Conflict if another process has replaced the manifest.
    """
    with edit_lock(root):
        if read_manifest(root) != manifest:
            raise changed_meanwhile(root)
        (root / COPY).remove()
        (root / MANIFEST).remove()
        (root / COUNTS).remove()


@contextlib.contextmanager
def edit_lock(root: WritableLocation) -> Iterator[None]:
    """Hold a local dataset's lock during an edit; in an object store, hold none, because edits are conditional writes.

    Also remove incomplete files that killed edits have left. Raise UsageError if another process still holds the lock
    after a minute, if locks are not supported, or if ``edits/`` is a symbolic link.
    """
    busy = f"{root} is being edited by another process"
    with (own_edits_folder(root) / LOCK).lock(busy, wait=_LOCK_WAIT, create=True):
        root.sweep()
        yield


def check_copy(root: Location, manifest: Manifest) -> None:
    """Raise NotADataset if the manifest's copy is missing, Damage if it is damaged or differs from the manifest."""
    path = root / COPY
    try:
        copy = read_manifest_file(path)
    except NotADataset as error:
        if path.is_file():
            raise Corrupt("not a manifest; `picstore repair` writes the copy again", str(path)) from error
        raise
    except (Damage, UnsupportedVersion) as error:
        raise Corrupt("the copy of the manifest is damaged; `picstore repair` writes it again", str(path)) from error
    if copy != manifest:
        raise Corrupt("the copy differs from the manifest; `picstore repair` writes it again", str(path))


def restore_manifest(root: WritableLocation) -> str | None:
    """Replace a damaged or missing manifest by its copy, or a missing, damaged or differing copy by the manifest.

    A damaged manifest is kept as ``picstore.json.damaged``. Return the name of the written file, MANIFEST or COPY;
    None if manifest and copy are sound.

    Raises:
        Unfinished: a conversion or shuffle into this folder has not ended; nothing is written.
        NotADataset: there is no dataset, or another program wrote ``picstore.json`` and there is no copy.
        UnsupportedVersion: a later picstore wrote the manifest.
        Damage: the manifest is damaged, and there is no sound copy.
        UsageError: another process is editing the dataset.
    """
    try:
        check_copy(root, read_manifest(root))
    except Unfinished:
        raise
    except (NotADataset, UnsupportedVersion, Damage):
        if not (root / MANIFEST).is_file() and not (root / COPY).is_file():
            raise
        with edit_lock(root):
            return _restore(root)
    return None


def _restore(root: WritableLocation) -> str | None:
    try:
        manifest = read_manifest(root)
    except Unfinished:
        raise
    except (NotADataset, UnsupportedVersion, Damage) as error:
        _restore_from_copy(root, error)
        return MANIFEST
    try:
        check_copy(root, manifest)
    except (NotADataset, Damage):
        copy_manifest(root)
        return COPY
    return None


def _restore_from_copy(root: WritableLocation, problem: PicstoreError) -> None:
    """Replace the manifest by its copy; raise ``problem``, the manifest's error, if the copy cannot be used."""
    damaged = None
    with contextlib.suppress(NotADataset, Damage):
        damaged = (root / MANIFEST).read_all(MAX_MANIFEST)
    if isinstance(problem, UnsupportedVersion) and holds_crc(damaged or b""):
        raise problem
    path = root / COPY
    if not path.is_file():
        raise problem
    raw = b""
    try:
        raw = path.read_all(MAX_MANIFEST)
        parse_manifest(raw, path)
    except (NotADataset, UnsupportedVersion, Damage) as error:
        if isinstance(error, UnsupportedVersion) and holds_crc(raw):
            raise
        text = f"the manifest and its copy {COPY} are damaged; restore one of them from a backup"
        raise Corrupt(text, str(root / MANIFEST)) from error
    if damaged is not None:
        (root / DAMAGED).write(damaged)
    (root / COPY).write(raw)
    (root / MANIFEST).write(raw)
