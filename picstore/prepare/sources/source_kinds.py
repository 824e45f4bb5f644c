"""Kinds of sources: the interface of a kind (SourceFormat), and recognizing a path's kind (SourceProbe, recognize)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from picstore.errors import Damage, NotADataset, PicstoreError, UsageError, missing_extra
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.source_file import SourceFile, visible_entries
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, Where, locate

_WITH_MAGIC = ("index", "mds", "litdata", "ffcv", "parquet", "hdf5", "lmdb", "recordio", "tfrecord", "picpoc")
# Kinds that accept any folder (``folder``) or any file (``list``), and are therefore tried last.
GENERAL = ("folder", "list")
# Kinds in the order in which ``recognize`` tries them; kinds of other packages are tried before GENERAL.
KINDS = (*_WITH_MAGIC, "table", "webdataset", "imagenet", "voc", "yolo", "coco", *GENERAL)

# Module and name of the SourceFormat of some kinds. For any other kind, the module has the kind's name, and the
# SourceFormat is its ``FORMAT``.
_FORMATS = {
    "imagenet": ("imagenet_tars", "FORMAT"),
    "index": ("index_in_place", "FORMAT"),
    "list": ("tables_and_lists", "LIST"),
    "table": ("tables_and_lists", "TABLE"),
}
HEAD_BYTES = 1 << 12  # number of bytes at a file's start that are read to recognize its kind by magic numbers


@dataclass(frozen=True)
class SourceProbe:
    """Location and the names of its entries, listed without reading any file.

    Attributes:
        location: file or folder, local or in an object store.
        is_folder: whether the location is a folder; False also if nothing exists there.
        folders: names of the sub-folders, sorted.
        files: names of the folder's other entries, sorted.
    """

    location: Location
    is_folder: bool
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def inspect(cls, where: Where) -> SourceProbe:
        """List a location; raise NotADataset if the location cannot be listed."""
        location = locate(where)
        if not location.is_folder():
            return cls(location, is_folder=False)
        entries = visible_entries(location)
        folders = tuple(name for name, is_folder in entries if is_folder)
        return cls(location, True, folders, tuple(name for name, is_folder in entries if not is_folder))

    @property
    def path(self) -> Path:
        """Local path of the location. Raise UsageError if the location is in an object store."""
        return local_path(self.location)

    def files_ending(self, *suffixes: str) -> list[str]:
        """Return the sorted names of files that, in lower case, end in one of ``suffixes``, which are lower case."""
        return [name for name in self.files if name.lower().endswith(suffixes)]

    def head(self, name: str = "") -> bytes:
        """Return the first HEAD_BYTES of the file, or of a named file in the folder; empty if reading fails."""
        try:
            with SourceFile(self.location / name if name else self.location, window=HEAD_BYTES) as file:
                return file.read(0, min(HEAD_BYTES, file.size))
        except Damage:
            return b""


def local_path(location: Location) -> Path:
    """Return the location's path on this machine; raise UsageError if the location is in an object store."""
    if isinstance(location, Folder):
        return location.path
    raise UsageError(f"{location} is in an object store, and a source of this kind is read from files; copy it first")


@dataclass(frozen=True)
class SourceFormat:
    """Kind of source. An entry point in ``picstore.sources`` is a SourceFormat or a ``list_inputs`` function.

    Attributes:
        list_inputs: function that lists a path, with options as keywords. It raises NotADataset if the path cannot be
            read, UsageError if the path is of another kind or an option is wrong, Damage, or MissingDependency.
        options: names of the options of ``list_inputs``.
        recognizes: function that returns whether a location is of this kind; None if ``--source auto`` never chooses
            the kind.
        object_stores: whether ``list_inputs`` takes a :class:`Location`, which may be in an object store, rather than a
            local path.
        takes_engine: whether ``list_inputs`` takes ``engine``, which lists large sources in other processes.
        takes_maps: whether ``list_inputs`` takes ``maps``: names of fields to keep as attachments, even if other fields
            of their type are left out.
    """

    list_inputs: Callable[..., Listing]
    options: tuple[str, ...] = ()
    recognizes: Callable[[SourceProbe], bool] | None = None
    object_stores: bool = False
    takes_engine: bool = False
    takes_maps: bool = False


def import_library(module: str, library: str, extra: str) -> Any:
    """Import a library that a source needs; raise MissingDependency, which names the extra to install, if it fails."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(f"this needs {library}", extra) from error


def recognize(location: Location) -> str:
    """Return the first kind that recognizes a location; raise NotADataset if no kind does."""
    probe = SourceProbe.inspect(location)
    for kind in (*KINDS[: -len(GENERAL)], *sorted(_plugins()), *GENERAL):
        format_ = load_format(kind)
        # In an object store, skip plug-ins for local files, because ``probe.path``, which they may use, raises there.
        if kind not in KINDS and not format_.object_stores and not isinstance(location, Folder):
            continue
        if format_.recognizes is not None and format_.recognizes(probe):
            return kind
    raise NotADataset(f"{location} is not a source that can be converted")


def load_format(kind: str) -> SourceFormat:
    """Import a kind's format; raise UsageError if the kind is unknown, PicstoreError if a plug-in cannot be loaded."""
    if kind in KINDS:
        module, name = _FORMATS.get(kind, (kind, "FORMAT"))
        found = getattr(importlib.import_module(f"picstore.prepare.sources.{module}"), name)
    else:
        plugins = _plugins()
        if kind not in plugins:
            raise UsageError(f"no source is called {kind}; there are auto, {', '.join(sorted({*KINDS, *plugins}))}")
        try:
            found = plugins[kind].load()
        # Catch all exceptions, because importing the package of a plug-in can raise any.
        except Exception as error:
            raise PicstoreError(f"the source {kind} ({plugins[kind].value}) cannot be loaded: {error!r}") from error
    return found if isinstance(found, SourceFormat) else SourceFormat(found)


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="picstore.sources")}
