"""The folder of the files that an index refers to, and whether an index may reach it (docs/index-in-place.md).

An index from elsewhere could name any folder of this machine, or a store to which the library signs in. So it reaches
files in its own folder alone, unless the user gives the root or has made the index himself: `picstore index` notes
each index in a file of the user's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import astuple, dataclass
from pathlib import Path, PurePosixPath

from picstore.errors import Corrupt, NotADataset, PicstoreError, UsageError
from picstore.storage.location.local import Folder
from picstore.storage.location.redact import redact
from picstore.storage.location.resolve import MANIFEST, Location, Where, is_relative, locate
from picstore.storage.manifest import Manifest, read_manifest

_NOTES = Path("picstore") / "indexes"  # in the folder of the user's state

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class ReferencesRoot:
    """The folder of the files that an index refers to; ``confined`` if no link may lead out of it."""

    folder: Location
    confined: bool = False

    def file(self, path: str) -> Location:
        """Find a file by its path below the root; Corrupt if a link leads out of a root that is confined."""
        file = self.folder / path
        if self.leads_out(str(file)):
            raise Corrupt("a link leads out of the folder of the index", str(file))
        return file

    def leads_out(self, path: str) -> bool:
        """Whether the path of a file below the root leads out of it by a link, which nobody allowed."""
        return self.confined and isinstance(self.folder, Folder) and not _lies_in(path, str(self.folder))


def find_references_root(
    where: Location, manifest: Manifest, root: Where | ReferencesRoot | None = None
) -> ReferencesRoot | None:
    """Find the root of an index, and contact nothing else; None for a data set that holds its images.

    Args:
        where: the index.
        root: folder that the user gives; by default the folder that the index names.

    Raises:
        NotADataset: the root does not exist.
        UsageError: the index names a folder outside of its own, and this user has not made it; or a root is given for
            a data set that holds its images.
    """
    if manifest.references is None:
        if root is not None:
            raise UsageError(f"{where} holds its images; leave out the root, which only an index takes")
        return None
    if isinstance(root, ReferencesRoot):
        return root
    found = (
        _find(where, manifest, manifest.references.root) if root is None else ReferencesRoot(locate(root).absolute())
    )
    if not found.folder.is_folder():
        raise NotADataset(f"{where} is an index of the images in {found.folder}, which does not exist")
    return found


def _find(where: Location, manifest: Manifest, stated: str) -> ReferencesRoot:
    """Find the root that an index names; a relative one lies below the index."""
    if is_relative(stated):
        folder = where.absolute() / stated
        if isinstance(folder, Folder):
            stated = os.path.normpath(folder)
            if _lies_in(stated, str(where)):
                return ReferencesRoot(Folder(Path(stated)), confined=True)
        elif ".." not in PurePosixPath(stated).parts:
            return ReferencesRoot(folder, confined=True)
    elif _key(manifest) in _noted():
        return ReferencesRoot(locate(stated))
    raise UsageError(
        f"{where} is an index of images outside of its folder, and no `picstore index` of this user made it; if you "
        "trust it, give the folder of the images: --root {0!r}, or picstore.Dataset({1!r}, root={0!r})".format(
            redact(stated), str(where)
        )
    )


def _lies_in(path: str, folder: str) -> bool:
    """Whether a local path lies in a local folder once all links are followed."""
    inner, outer = os.path.realpath(path), os.path.realpath(folder)
    return f"{inner}/".startswith(outer.rstrip("/") + "/")


def indexed_folder(where: Where) -> tuple[Location, ...]:
    """Folder of the images of a local index that lie outside of it, as its manifest states it; else nothing."""
    location = locate(where)
    if not isinstance(location, Folder) or not (location / MANIFEST).is_file():
        return ()
    try:
        references = read_manifest(location).references
        return () if references is None or is_relative(references.root) else (locate(references.root),)
    except PicstoreError:  # told where the index is opened
        return ()


def note_index(manifest: Manifest) -> None:
    """Note that this user made an index; a warning where nothing can be noted."""
    if manifest.references is None or (key := _key(manifest)) in _noted():
        return
    try:
        path = _notes()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{key} {json.dumps(manifest.references.root)}\n".encode())
    except (OSError, RuntimeError) as error:  # RuntimeError without a home
        logger.warning("that you made this index cannot be noted: %s; give --root to read it", error)


def _noted() -> set[str]:
    """Read the keys of the indexes that this user made."""
    try:
        return {line.partition(" ")[0] for line in _notes().read_text("utf-8", "replace").splitlines()}
    except (OSError, RuntimeError):
        return set()


def _notes() -> Path:
    """Path of the notes, in the user's state folder (XDG Base Directory Specification, 0.8)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / _NOTES


def _key(manifest: Manifest) -> str:
    """Digest of an index's root and files; edits change neither."""
    root = None if manifest.references is None else manifest.references.root
    text = json.dumps([root, *map(astuple, manifest.files)])
    return hashlib.sha256(text.encode()).hexdigest()
