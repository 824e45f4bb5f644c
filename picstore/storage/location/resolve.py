"""Locations from paths and URLs, and the names of a dataset's files.

A :class:`Location` is a folder or file: local (``local.Folder``), in an object store (``object_store.Bucket``), or
read-only on a web server or the Hugging Face hub (``WebFile`` and ``HubFile`` of ``web_and_hub``). All code that reads
or writes a dataset's files uses locations.
"""

from __future__ import annotations

import os
import re
import reprlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from picstore.errors import UsageError
from picstore.storage.location.abstract_location import Allocate, Location, Root, WritableLocation, fresh
from picstore.storage.location.local import Folder
from picstore.storage.location.redact import redact

if TYPE_CHECKING:
    from picstore.storage.location.obstore_file import RemoteFile

# Names of ``abstract_location`` that other modules import from this module. Without the list, mypy rejects this.
__all__ = ["Allocate", "Location", "Root", "WritableLocation", "fresh"]

MANIFEST = "picstore.json"
COPY = "picstore.copy.json"  # file name of the manifest's copy
INDEX = "picstore.idx"
COUNTS = "picstore.counts"
LEDGER = "ledger.jsonl"
EDITS = "edits"  # folder with the files that edits add to a dataset
LOCK = "lock"  # file in EDITS that is locked during an edit
UNFINISHED = "unfinished"  # folder that exists until the conversion or shuffle that writes the dataset has ended

Where: TypeAlias = "str | os.PathLike[str] | Location"
T = TypeVar("T")
R = TypeVar("R")

_SCHEMES = ("s3", "gs", "az", "http", "https", "hf")
_URL = re.compile(r"([a-z][a-z0-9+]*):/{1,2}(.*)", re.DOTALL)  # one slash or two: pathlib turns s3://x into s3:/x
# Mean seconds per call above which ``map_concurrently`` assumes that calls wait for a disk or network.
_WAITING_SECONDS = 0.001
# Number of calls that ``map_concurrently`` runs at a time: enough to hide waits of 20 ms, few enough for any store.
_MAX_REQUESTS = 16


def file_name(stream: int, file: int) -> str:
    """Return the path, relative to the dataset, of file number ``file`` of stream number ``stream``."""
    return f"{stream:04d}/{file:06d}.pic"


def locate(where: Where) -> Location:
    """Resolve a path, or a URL such as ``s3://bucket/train``, ``https://…`` or ``hf://datasets/…``, to a location.

    Raise UsageError if ``where`` is neither a path nor a URL, or if the URL is malformed or has an unknown scheme.
    Raise MissingDependency if the library for the URL is not installed.
    """
    if isinstance(where, Location):
        return where
    path = os.fspath(where) if isinstance(where, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise UsageError(f"{reprlib.repr(where)} is not a path or URL; give a str or a pathlib.Path")
    if (match := _match_url(path)) is None:
        return Folder(checked_path(path))
    if match[1] not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise UsageError(f"{redact(path)} is a URL of an unknown scheme; known are {known} and paths")
    return _class_of(match[1]).parse(match[1], match[2])


def _match_url(path: str) -> re.Match[str] | None:
    """Return the scheme and the rest of a URL as groups 1 and 2, or None if the string is a path."""
    match = _URL.fullmatch(path)
    return match if match and (match[1] in _SCHEMES or "://" in path) else None


def locate_output(where: Where) -> WritableLocation:
    """Return the location of a file to write; raise UsageError if it is a folder or cannot be written to."""
    location = locate_writable(where)
    if location.is_folder():
        raise UsageError(f"{location} is a folder; give the name of a file")
    return location


def checked_path(where: str | os.PathLike[str]) -> Path:
    """Return a local path; raise UsageError if ``where`` is a URL, or has a character that no path can have."""
    if not isinstance(where, (str, os.PathLike)):
        raise UsageError(f"{reprlib.repr(where)} is not a path; give a text or a Path")
    path = Path(where)
    if _match_url(os.fspath(where)) is not None:
        raise UsageError(f"{redact(os.fspath(where))} is a URL; give a path of this machine")
    try:
        if b"\0" not in os.fsencode(path):
            return path
    except UnicodeEncodeError:
        pass
    raise UsageError(f"{reprlib.repr(str(path))} has a character that no path can have; give a path or URL")


def _class_of(scheme: str) -> type[RemoteFile]:
    """Return the class of a scheme's locations, imported here, because a loader of local files needs none of them."""
    from picstore.storage.location.object_store import Bucket
    from picstore.storage.location.web_and_hub import HubFile, WebFile

    return {"http": WebFile, "https": WebFile, "hf": HubFile}.get(scheme, Bucket)


def locate_writable(where: Where) -> WritableLocation:
    """Resolve a path or URL to a writable location; raise UsageError for web servers and the hub."""
    location = locate(where)
    if isinstance(location, WritableLocation):
        return location
    scheme = str(location).partition(":")[0]
    raise UsageError(f"{location} cannot be written: {scheme}:// is only read; write to a folder or a store")


def is_relative(name: str) -> bool:
    """Return whether a string is a relative path, not an absolute path or a URL."""
    return _URL.fullmatch(name) is None and "://" not in name and not name.startswith("/")


def read_at(where: Where, offset: int, size: int, *, file: str, allocate: Allocate = fresh) -> memoryview:
    """Read ``size`` bytes at ``offset`` of a file into memory from ``allocate``; ``file`` is its name in messages.

    No memory is allocated for bytes beyond the file's end.

    Raises:
        NotADataset: the file is missing.
        Damage: the file ends before ``offset + size`` (Truncated), or the disk cannot read it.
        PicstoreError: access is refused, or the store cannot be reached.
    """
    return locate(where).read(offset, size, file=file, allocate=allocate)


def map_concurrently(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the function's result for each item, in order. Calls that prove slow continue in 16 threads.

    Fast calls run without threads: reading a local file's footer takes 0.3 ms in a thread, 0.1 ms without.
    """
    waiting = iter(items)
    taken = 0.0
    for count, item in enumerate(waiting, start=1):
        began = time.monotonic()
        result = function(item)
        taken += time.monotonic() - began
        yield result
        if taken > _WAITING_SECONDS * count:
            break
    with ThreadPoolExecutor(_MAX_REQUESTS) as threads:
        while chunk := list(islice(waiting, 4 * _MAX_REQUESTS)):
            yield from threads.map(function, chunk)
