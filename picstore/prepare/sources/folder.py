"""A folder with a sub-folder a class, as torchvision's ImageFolder reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from picstore.prepare.inputs import Input, Listing, entries_of, printable
from picstore.prepare.sources.kind import Glance, Source


def folder_source(path: Path) -> Listing:
    """One class a sub-folder, labels 0, 1, … by sorted name; a folder without sub-folders is one class, label 0.

    Every regular file counts, whatever its name, but for hidden ones; sub-folders of a class belong to it.
    """
    entries = entries_of(path)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        return Listing("folder", list(_walk(path, "", 0, set())), [printable(path.resolve().name)])
    inputs: list[Input] = []
    for label, entry in enumerate(classes):
        inputs.extend(_walk(Path(entry.path), entry.name + "/", label, set()))
    listing = Listing("folder", inputs, [printable(entry.name) for entry in classes])
    ignored = len(entries) - len(classes)
    if ignored:
        files = "1 file" if ignored == 1 else f"{ignored:,} files"
        listing.remarks.append(f"{files} directly in {path}, in no class folder: left out")
    return listing


def _walk(path: Path, prefix: str, label: int, above: set[tuple[int, int]]) -> Iterator[Input]:
    """Files below ``path`` in order; links are followed, but never into a folder that is being walked (``above``)."""
    try:
        here = path.stat()
        entries = entries_of(path)
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


def looks_like(glance: Glance) -> bool:
    """Any folder."""
    return glance.is_folder


SOURCE = Source(folder_source, guess=looks_like)
