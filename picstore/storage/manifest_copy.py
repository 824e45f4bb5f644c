"""The manifest's second copy, ``picstore.copy.json``: written, compared and restored (docs/format.md, "Copy").

The copy is written first, then ``picstore.json``, which alone makes a version valid. An interruption between the two
leaves a copy that is newer than its manifest, never an older one, which would bring deleted records back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from picstore.errors import Conflict, Corrupt, Damage, NotADataset, PicstoreError, Unfinished, UnsupportedVersion
from picstore.storage.edits.npy_files import own_edits_folder
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import COPY, COUNTS, LOCK, MANIFEST, Location
from picstore.storage.manifest import (
    Manifest,
    holds_crc,
    manifest_file,
    parse_manifest,
    read_manifest,
    read_manifest_file,
)

_LOCK_WAIT = 60.0  # seconds; an edit holds its lock for some writes
DAMAGED = f"{MANIFEST}.damaged"  # the damaged manifest in whose place its copy was put


def write_new_manifest(root: Location, manifest: Manifest) -> None:
    """Write a first manifest's copy, then the manifest; all files that it names are there.

    Conflict if another manifest has appeared.
    """
    raw = manifest_file(manifest)
    if not (root / MANIFEST).is_file():
        (root / COPY).write(raw)
    if not (root / MANIFEST).write_new(raw):
        _copy_manifest(root)
        if read_manifest(root) != manifest:
            raise Conflict(f"another process has made a data set in {root} meanwhile; choose another destination")


def replace_manifest(root: Location, old: bytes, manifest: Manifest) -> None:
    """Write the copy, then the manifest, where that still has the bytes ``old``; all files that it names are there.

    Conflict if it has others.
    """
    raw = manifest_file(manifest)
    (root / COPY).write(raw)
    if not (root / MANIFEST).replace(raw, expected=old):
        _copy_manifest(root)
        raise changed_meanwhile(root)


def changed_meanwhile(root: Location) -> Conflict:
    """Make the error of an edit that another one has overtaken."""
    return Conflict(f"{root} was edited since it was opened; open it again and repeat the change")


def _copy_manifest(root: Location) -> None:
    """Make the copy equal to the manifest again, after a write that another process has overtaken."""
    raw = None
    while raw != (raw := (root / MANIFEST).read_all(MAX_MANIFEST)):
        (root / COPY).write(raw)


def remove_manifest(root: Location, manifest: Manifest) -> None:
    """Make a data set unfinished: remove the copy, then the manifest, so that no copy outlives it.

    Conflict if the data set has another manifest by now.
    """
    with edit_lock(root):
        if read_manifest(root) != manifest:
            raise changed_meanwhile(root)
        (root / COPY).remove()
        (root / MANIFEST).remove()
        (root / COUNTS).remove()


@contextlib.contextmanager
def edit_lock(root: Location) -> Iterator[None]:
    """Lock a data set in a folder against other edits, as long as one takes; in a store, edits are conditional writes.

    The lock is on ``edits/lock``, an empty file that is never replaced. Partial files of killed edits are removed.

    Raises:
        UsageError: another process holds the lock for a minute, the file system has no locks, or ``edits/`` is a
            symbolic link.
    """
    busy = f"{root} is being edited by another process"
    with (own_edits_folder(root) / LOCK).lock(busy, wait=_LOCK_WAIT, create=True):
        root.sweep()
        yield


def check_copy(root: Location, manifest: Manifest) -> None:
    """Compare the copy with the manifest; their layout as JSON may differ.

    Raises:
        NotADataset, Damage: there is no copy, or it is damaged or of another version than the manifest.
    """
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


@dataclass(frozen=True, slots=True)
class Restored:
    """Files that :func:`restore_manifest` has written: the manifest from its copy, or the copy from the manifest."""

    manifest: bool = False
    copy: bool = False


def restore_manifest(root: Location) -> Restored:
    """Put the copy in place of a damaged or missing manifest, or write a missing, damaged or differing copy.

    A damaged manifest is kept as ``picstore.json.damaged``.

    Raises:
        Unfinished: a conversion or shuffle has not ended here; a copy alone never makes it a data set.
        NotADataset: there is no data set, or ``picstore.json`` is another program's and there is no copy.
        UnsupportedVersion: a later picstore wrote the manifest.
        Damage: the manifest is damaged, and there is no sound copy.
        UsageError: another process is editing the data set.
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
    return Restored()


def _restore(root: Location) -> Restored:
    try:
        manifest = read_manifest(root)
    except Unfinished:
        raise
    except (NotADataset, UnsupportedVersion, Damage) as error:
        _restore_from_copy(root, error)
        return Restored(manifest=True)
    try:
        check_copy(root, manifest)
    except (NotADataset, Damage):
        _copy_manifest(root)
        return Restored(copy=True)
    return Restored()


def _restore_from_copy(root: Location, problem: PicstoreError) -> None:
    """Put the copy in place of the manifest, or raise the manifest's ``problem`` where that cannot be."""
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
