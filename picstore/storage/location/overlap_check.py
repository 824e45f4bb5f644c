"""Check that a destination does not overlap the sources, for verbs that read one place and write another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from picstore.errors import UsageError
from picstore.storage.location.local import Folder
from picstore.storage.location.obstore_file import RemoteFile
from picstore.storage.location.resolve import Location, Where, locate


def require_apart(destination: Where, sources: Iterable[Where], *, may_be_equal: bool = False) -> None:
    """Raise UsageError if the destination is a source, lies in a source, or contains a source.

    If a dataset lay in a folder of images, the folder's next conversion would take the dataset for a class and change
    the labels of all classes that sort after it. Local folders are also compared by device and inode, because links,
    bind mounts and other spellings may name the same folder. A source includes the folders to which links in its top
    level lead. ``may_be_equal`` allows a destination that is itself a source.
    """
    out = locate(destination)
    for source in map(locate, sources):
        if _holds(source, out) and _holds(out, source):
            if not may_be_equal:
                raise UsageError(f"the destination {out} is the source itself; choose another destination")
        elif any(_holds(folder, out) for folder in (source, *_linked_folders(source))):
            raise UsageError(
                f"the destination {out} lies in the source {source}, and would be read as a part of it the next time; "
                "choose a destination outside of it"
            )
        elif _holds(out, source):
            raise UsageError(f"the source {source} lies in the destination {out}; choose another destination")


def _holds(outer: Location, inner: Location) -> bool:
    """Return whether ``inner`` is ``outer`` or lies below it."""
    if isinstance(outer, Folder) and isinstance(inner, Folder):
        return _holds_path(Path(os.path.realpath(outer.path)), Path(os.path.realpath(inner.path)))
    if isinstance(outer, RemoteFile) and isinstance(inner, RemoteFile):
        return (outer.scheme, outer.bucket) == (inner.scheme, inner.bucket) and _starts(outer.key, inner.key)
    return False


def _starts(outer: str, inner: str) -> bool:
    names, below = ([name for name in key.split("/") if name] for key in (outer, inner))
    return below[: len(names)] == names


def _holds_path(outer: Path, inner: Path) -> bool:
    """Return whether ``inner`` is ``outer`` or lies below it; both paths are absolute and without links."""
    if inner.is_relative_to(outer):
        return True
    there = _status(outer)
    if there is None:
        return False
    return any((found := _status(each)) and os.path.samestat(there, found) for each in (inner, *inner.parents))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:  # The folder does not exist yet.
        return None


def _linked_folders(source: Location) -> Iterator[Location]:
    """Yield the folders to which links in a local source's top level lead, such as class folders stored elsewhere."""
    if isinstance(source, Folder) and source.is_folder():
        with os.scandir(source.path) as found:
            yield from (Folder(Path(entry.path)) for entry in found if entry.is_symlink() and Path(entry.path).is_dir())
