"""A folder with a sub-folder a class, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Input, Listing, entries_of, printable
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, many


def folder_source(place: Location) -> Listing:
    """One class a sub-folder, labels 0, 1, … by sorted name; a folder without sub-folders is one class, label 0.

    Every regular file counts, whatever its name, but for hidden ones; sub-folders of a class belong to it.
    """
    entries = entries_of(place)
    classes = [entry.name for entry in entries if entry.is_folder]
    if not classes:
        name = place.path.resolve().name if isinstance(place, Folder) else place.name
        return Listing("folder", _below(place, "", 0), [printable(name)])
    found = many(lambda entry: _below(place / entry[1], f"{entry[1]}/", entry[0]), enumerate(classes))
    listing = Listing("folder", [one for some in found for one in some], list(map(printable, classes)))
    ignored = len(entries) - len(classes)
    if ignored:
        files = "1 file" if ignored == 1 else f"{ignored:,} files"
        listing.remarks.append(f"{files} directly in {place}, in no class folder: left out")
    return listing


def _below(place: Location, prefix: str, label: int) -> list[Input]:
    """All files below a place, in the order of a walk through its folders by name."""
    if isinstance(place, Folder):
        return list(_walk(place.path, prefix, label, set()))
    # Not a folder at a time: a store lists a thousand objects in one request, wherever below the place they are.
    files = sorted((name.split("/"), size) for name, size in place.files())
    folders = {tuple(parts[:depth]) for parts, _ in files for depth in range(1, len(parts))}
    return [
        Input(prefix + "/".join(parts), label, str(place / "/".join(parts)), 0, size)
        for parts, size in files
        if not any(part.startswith(".") for part in parts) and (size or tuple(parts) not in folders)
    ]


def _walk(path: Path, prefix: str, label: int, above: set[tuple[int, int]]) -> Iterator[Input]:
    """Files below ``path`` in order; links are followed, but never into a folder that is being walked (``above``)."""
    try:
        here = path.stat()
        with os.scandir(path) as found:
            entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        yield Input(printable(prefix), label, str(path), problem=f"folder cannot be listed: {error.strerror}")
        return
    for entry in entries:
        name = prefix + entry.name
        if entry.is_dir():
            inner = {*above, (here.st_dev, here.st_ino)}
            status = entry.stat()
            if (status.st_dev, status.st_ino) not in inner:
                yield from _walk(Path(entry.path), name + "/", label, inner)
        elif entry.is_file():
            yield Input(printable(name), label, entry.path)
        elif entry.is_symlink():
            yield Input(printable(name), label, entry.path, problem="a link to nothing")
        else:
            yield Input(printable(name), label, entry.path, problem="not a regular file")


def looks_like(glance: SourceProbe) -> bool:
    """Any folder."""
    return glance.is_folder


SOURCE = Source(folder_source, guess=looks_like, stores=True)
