"""The manifest's second copy, ``picstore.copy.json``: compared, put in the manifest's place (docs/format.md, "Copy").

``manifest_writer`` writes it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from picstore.errors import Corrupt, Damage, NotADataset, PicstoreError, Unfinished, UnsupportedVersion
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import COPY, MANIFEST, Location, WritableLocation
from picstore.storage.manifest import Manifest, holds_crc, parse_manifest, read_manifest, read_manifest_file
from picstore.storage.manifest_writer import copy_manifest, edit_lock

DAMAGED = f"{MANIFEST}.damaged"  # the damaged manifest in whose place its copy was put


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


def restore_manifest(root: WritableLocation) -> Restored:
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


def _restore(root: WritableLocation) -> Restored:
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
        copy_manifest(root)
        return Restored(copy=True)
    return Restored()


def _restore_from_copy(root: WritableLocation, problem: PicstoreError) -> None:
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
