"""Files that the content of a source names: below the source's folder, or refused."""

from __future__ import annotations

import functools
import os
import re
from pathlib import PurePosixPath

from picstore.errors import UsageError
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location

_CACHED_FOLDERS = 1024
_HUB_SNAPSHOT = re.compile(r"(.*/datasets--[^/]+--[^/]+)/snapshots/[^/]+(?:/|$)")


def named_file(folder: Location, name: object) -> Location:
    """Location of a file that a source names, relative to a folder; UsageError if it lies elsewhere.

    Tables, indices and annotations may come from strangers: no absolute name, no ``..`` and no symbolic link leads to a
    file outside the folder, but for the files of a download by Hugging Face, which its snapshot links to. All sources
    confine names by this function.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"{name!r} is not the name of a file; give a path in {folder}")
    if isinstance(folder, Folder):
        out = not is_inside(str(folder), name if name.startswith("/") else f"{folder}/{name}")
    else:
        out = name.startswith("/") or ".." in PurePosixPath(name).parts
    if out:
        raise UsageError(f"{name!r} leads out of the folder {folder}; sources may name files below it only")
    return folder / name


def is_inside(folder: str, path: str) -> bool:
    """Whether a local path lies below a folder once all links are followed; the file need not exist."""
    parent, _, last = path.rpartition("/")
    real = os.path.realpath(path) if last in ("", ".", "..") else f"{_real_folder(parent or '/')}/{last}"
    if os.path.islink(real):  # noqa: PTH114
        real = os.path.realpath(real)
    return real.startswith((_real_folder(folder).rstrip("/") + "/", *_hub_files(_real_folder(folder))))


def _hub_files(folder: str) -> list[str]:
    """Return the folder of the files that a snapshot in Hugging Face's cache links to, as a prefix.

    A snapshot is ``datasets--OWNER--NAME/snapshots/REVISION``, and its files are links into ``datasets--…/blobs``.
    """
    match = _HUB_SNAPSHOT.match(folder)
    return [f"{match[1]}/blobs/"] if match else []


@functools.lru_cache(_CACHED_FOLDERS)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)
