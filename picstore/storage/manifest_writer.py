"""Writing and removing the manifest with its copy (docs/format.md, "Copy"), and the lock that edits hold meanwhile.

The copy is written first, then ``picstore.json``, which alone makes a version valid. An interruption between the two
leaves a copy that is newer than its manifest, never an older one, which would bring deleted records back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from picstore.errors import Conflict
from picstore.storage.edits.npy_files import own_edits_folder
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import COPY, COUNTS, LOCK, MANIFEST, Location, WritableLocation
from picstore.storage.manifest import Manifest, manifest_file, read_manifest

_LOCK_WAIT = 60.0  # seconds; an edit holds its lock for some writes


def write_new_manifest(root: WritableLocation, manifest: Manifest) -> None:
    """Write a first manifest's copy, then the manifest; all files that it names are there.

    Conflict if another manifest has appeared.
    """
    raw = manifest_file(manifest)
    if not (root / MANIFEST).is_file():
        (root / COPY).write(raw)
    if not (root / MANIFEST).write_new(raw):
        copy_manifest(root)
        if read_manifest(root) != manifest:
            raise Conflict(f"another process has made a data set in {root} meanwhile; choose another destination")


def replace_manifest(root: WritableLocation, old: bytes, manifest: Manifest) -> None:
    """Write the copy, then the manifest, where that still has the bytes ``old``; all files that it names are there.

    Conflict if it has others.
    """
    raw = manifest_file(manifest)
    (root / COPY).write(raw)
    if not (root / MANIFEST).replace(raw, expected=old):
        copy_manifest(root)
        raise changed_meanwhile(root)


def changed_meanwhile(root: Location) -> Conflict:
    """Make the error of an edit that another one has overtaken."""
    return Conflict(f"{root} was edited since it was opened; open it again and repeat the change")


def copy_manifest(root: WritableLocation) -> None:
    """Make the copy equal to the manifest again, after a write that another process has overtaken."""
    raw = None
    while raw != (raw := (root / MANIFEST).read_all(MAX_MANIFEST)):
        (root / COPY).write(raw)


def remove_manifest(root: WritableLocation, manifest: Manifest) -> None:
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
def edit_lock(root: WritableLocation) -> Iterator[None]:
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
