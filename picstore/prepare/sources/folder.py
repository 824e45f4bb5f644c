"""Folders as a source: a sub-folder per class, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from picstore.prepare.sources.base import SourceFormat, SourceProbe
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.source_file import printable, visible_entries
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, map_concurrently


def list_folder(location: Location) -> Listing:
    """List one class per sub-folder, labels by sorted name; a folder without sub-folders is one class, label 0.

    Every regular file counts, whatever its name, except hidden ones; nested folders belong to their class.
    """
    entries = visible_entries(location)
    classes = [entry.name for entry in entries if entry.is_folder]
    if not classes:
        name = location.path.resolve().name if isinstance(location, Folder) else location.name
        return Listing("folder", _files_below(location, "", 0), [printable(name)])
    found = map_concurrently(
        lambda entry: _files_below(location / entry[1], f"{entry[1]}/", entry[0]), enumerate(classes)
    )
    listing = Listing("folder", [one for some in found for one in some], list(map(printable, classes)))
    ignored = len(entries) - len(classes)
    if ignored:
        files = "1 file" if ignored == 1 else f"{ignored:,} files"
        listing.remarks.append(f"{files} directly in {location}, in no class folder: left out")
    return listing


def _files_below(folder: Location, prefix: str, label: int) -> list[Input]:
    """All files below a folder, depth first, by name."""
    if isinstance(folder, Folder):
        return list(_local_files_below(folder.path, prefix, label, set()))
    # Not folder by folder: a store lists a thousand objects per request, at any depth.
    files = sorted((name.split("/"), size) for name, size in folder.files())
    folders = {tuple(parts[:depth]) for parts, _ in files for depth in range(1, len(parts))}
    return [
        Input(prefix + "/".join(parts), label, str(folder / "/".join(parts)), 0, size)
        for parts, size in files
        if not any(part.startswith(".") for part in parts) and (size or tuple(parts) not in folders)
    ]


def _local_files_below(path: Path, prefix: str, label: int, parents: set[tuple[int, int]]) -> Iterator[Input]:
    """Files below ``path`` in order; links are followed, except to a folder in ``parents`` (device, inode)."""
    try:
        own = path.stat()
        with os.scandir(path) as found:
            entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        yield Input(printable(prefix), label, str(path), problem=f"folder cannot be listed: {error.strerror}")
        return
    for entry in entries:
        name = prefix + entry.name
        if entry.is_dir():
            inner = {*parents, (own.st_dev, own.st_ino)}
            status = entry.stat()
            if (status.st_dev, status.st_ino) not in inner:
                yield from _local_files_below(Path(entry.path), name + "/", label, inner)
        elif entry.is_file():
            yield Input(printable(name), label, entry.path)
        elif entry.is_symlink():
            yield Input(printable(name), label, entry.path, problem="a link to nothing")
        else:
            yield Input(printable(name), label, entry.path, problem="not a regular file")


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a folder."""
    return probe.is_folder


FORMAT = SourceFormat(list_folder, recognizes=recognizes, object_stores=True)
