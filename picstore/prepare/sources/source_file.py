"""Files of a source: byte ranges checked against the file's size, names confined to its folder, printable names."""

from __future__ import annotations

import errno
import functools
import os
import re
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import PurePosixPath

from picstore.errors import Changed, Damage, NotADataset, Truncated, UsageError
from picstore.storage.location.abstract_location import Entry
from picstore.storage.location.local import Folder
from picstore.storage.location.obstore_file import OddKey, RemoteFile
from picstore.storage.location.regular_file import is_version, open_regular, version_of
from picstore.storage.location.resolve import Location, Where, locate

# Smallest number of bytes per read of a local file, because formats read many small fields in sequence.
_WINDOW = 1 << 12
# Smallest number of bytes per request to an object store, because the answer takes as long as transferring a megabyte.
_REMOTE_WINDOW = 8 << 20


class SourceFile(AbstractContextManager["SourceFile"]):
    """Open file of a source; sizes stated in the file are not trusted, and reading beyond its end raises Truncated.

    Args:
        where: the file. Opening raises Damage if the file cannot be opened.
        window: smallest number of bytes read at a time; 0 suits small sequential reads.
        version: version of the file when it was listed; opening another version raises Changed. Empty for any version.

    Attributes:
        path, printable_path: path or URL of the file, and its printable form for messages.
        version: version of the open file, for inputs whose offsets were read from it.
    """

    def __init__(self, where: Where, *, window: int = 0, version: str = "") -> None:
        location = locate(where)
        self.path, self.name = str(location), location.name
        self.printable_path = printable(self.path)
        self._window, self._window_offset = b"", 0
        self._object = location if isinstance(location, RemoteFile) else None
        if self._object is not None:
            self._min_bytes = window or _REMOTE_WINDOW
            try:
                self._object, self.size = self._object.pin()
            # NotADataset means that the object is missing. Raise the error for a missing local file, so that the ledger
            # states the same reason whether the source is local or in a store.
            except NotADataset as error:
                raise Damage(f"cannot be read: {os.strerror(errno.ENOENT)}", self.printable_path) from error
            except OddKey as error:
                raise Damage(f"cannot be read: {error}", self.printable_path) from error
            self.version = self._object.expected
            same = self.version == version
        else:
            self._min_bytes = window or _WINDOW
            try:
                self._descriptor, self.size = open_regular(self.path)
            except OSError as error:
                raise Damage(f"cannot be read: {error.strerror or error}", self.printable_path) from error
            status = os.fstat(self._descriptor)
            self.version = version_of(status)
            same = bool(version) and is_version(status, version)
        if version and not same:
            self.close()
            raise Changed(Changed.WHAT, self.printable_path)

    def read(self, offset: int, size: int) -> bytes:
        """Read exactly ``size`` bytes; raise Truncated, before allocating anything, if the file ends earlier."""
        if size < 0 or offset < 0 or offset + size > self.size:
            what = f"{size:,} bytes are said to be here, the file has {self.size:,}"
            raise Truncated(what, self.printable_path, offset)
        start = offset - self._window_offset
        if start < 0 or start + size > len(self._window):
            self._window, self._window_offset, start = self._pread(offset, max(size, self._min_bytes)), offset, 0
        if start + size > len(self._window):
            raise Truncated("the file was cut off while it was read", self.printable_path, offset)
        return self._window[start : start + size]

    def _pread(self, offset: int, size: int) -> bytes:
        if self._object is not None:
            return bytes(self._object.read(offset, min(size, self.size - offset), file=self.printable_path))
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise Damage(f"cannot be read: {error.strerror or error}", self.printable_path, offset) from error

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._object is None:
            os.close(self._descriptor)


def file_version(where: Where) -> str:
    """Return a file's current version, see :attr:`SourceFile.version`; empty if the file cannot be read."""
    location = locate(where)
    try:
        return location.pin()[0].expected if isinstance(location, RemoteFile) else version_of(os.stat(str(location)))  # noqa: PTH116
    except (OSError, ValueError, NotADataset, OddKey):
        return ""


def locate_version(path: str, version: str) -> Location:
    """Return a file's location; in a store, it is pinned to ``version``: reading another version raises Changed."""
    location = locate(path)
    return replace(location, expected=version) if version and isinstance(location, RemoteFile) else location


def read_whole(location: Location, limit: int) -> bytes:
    """Read a file; raise UsageError if the file is larger than ``limit`` bytes, NotADataset if reading fails."""
    try:
        with SourceFile(location) as file:
            if file.size > limit:
                raise UsageError(f"{location} has {file.size:,} bytes; give at most {limit:,}")
            return file.read(0, file.size)
    except Damage as error:
        raise NotADataset(f"{location} {error.what}") from error


def printable(name: str) -> str:
    r"""Return a file name as valid UTF-8; any byte that is not UTF-8 becomes its escape, such as ``\xff``."""
    try:
        raw = os.fsencode(name)
    except UnicodeEncodeError:
        raw = name.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def visible_entries(folder: Location) -> list[Entry]:
    """Return a folder's entries that are not hidden, sorted by name.

    Raise NotADataset if the folder does not exist, UsageError if it is a file.
    """
    return [entry for entry in folder.entries() if not entry.name.startswith(".")]


_CACHED_FOLDERS = 1024
_HUB_SNAPSHOT = re.compile(r"(.*/datasets--[^/]+--[^/]+)/snapshots/[^/]+(?:/|$)")


def named_file(folder: Location, name: object) -> Location:
    """Locate the file ``name`` relative to ``folder``; raise UsageError if the file lies outside ``folder``.

    The name comes from a table, index or annotation, which is not trusted. No absolute name, ``..`` or symbolic link
    may lead out of the folder, except links of a Hugging Face snapshot.
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
    """Return whether a local path lies below a folder after links are followed; the file need not exist.

    Files to which a Hugging Face snapshot links count as below its folder.
    """
    parent, _, last = path.rpartition("/")
    real = os.path.realpath(path) if last in ("", ".", "..") else f"{_real_folder(parent or '/')}/{last}"
    if os.path.islink(real):  # noqa: PTH114
        real = os.path.realpath(real)
    return real.startswith((_real_folder(folder).rstrip("/") + "/", *_hub_files(_real_folder(folder))))


def _hub_files(folder: str) -> list[str]:
    """Return, as a list, the folder ``blobs`` into which a Hugging Face snapshot links; [] for any other folder."""
    match = _HUB_SNAPSHOT.match(folder)
    return [f"{match[1]}/blobs/"] if match else []


@functools.lru_cache(_CACHED_FOLDERS)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)
