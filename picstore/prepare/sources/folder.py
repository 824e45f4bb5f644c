"""Folders as a source: a sub-folder per class, as torchvision's ImageFolder reads it."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.listing_builder import FoundPart, Notes, add_note, list_parts
from picstore.prepare.sources.refused_files import require_readable
from picstore.prepare.sources.source_file import is_inside, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.prepare.sources.splits import refuse, refuse_splits, split_of_word
from picstore.storage.location.local import Folder
from picstore.storage.location.regular_file import is_folder, kind_of
from picstore.storage.location.resolve import Location

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
# Keys of ``_Walk.notes``, one for each kind of file or folder that a message to the user counts.
_NO_IMAGE, _OUTSIDE, _HIDDEN = "no image", "link out of the source", "hidden"
_ODD_KEY = "its name has an empty part, '.', '..' or a control character, which the client of stores refuses; rename it"
_OF_PROGRAMS = {".DS_Store", ".localized", ".directory", ".git", ".gitattributes", ".gitignore", ".ipynb_checkpoints"}
NO_IMAGES = (*_TABLES, ".txt", ".md", ".rst", ".db", ".ini", ".json", ".xml", ".html", ".yaml", ".yml")


def list_folder(location: Location, *, hidden: bool = False, engine: Engine | None = None) -> Listing:
    """List the files of a folder whose sub-folders are classes, numbered by sorted name.

    All files below a sub-folder, at any depth, belong to its class. A folder without sub-folders is itself the only
    class, label 0. Files with the suffix of a text or table are not listed, and hidden files only with ``hidden``.
    Links are followed. Messages count what is left out.
    """
    every = location.entries()
    odd = [entry.name for entry in every if entry.is_folder and location.is_odd(f"{entry.name}/x")]
    entries = [entry for entry in every if is_taken(entry.name, hidden=hidden) and entry.name not in odd]
    names = [entry.name for entry in entries if entry.is_folder]
    classes, labels = names, [*((name, -1) for name in odd), *((name, label) for label, name in enumerate(names))]
    folders = [_ClassFolder(location, location / name, f"{name}/", label, hidden) for name, label in labels]
    if not names:
        classes = [location.path.resolve().name if isinstance(location, Folder) else location.name]
        folders = [_ClassFolder(location, location, "", 0, hidden)]
    found = list_parts(_list_class, folders, engine)
    notes = dict(found.notes)
    apart = [
        entry.name for entry in every if names and not is_taken(entry.name, hidden=hidden) and entry.name not in odd
    ]
    if apart:
        add_note(notes, _HIDDEN, min(apart), len(apart))
    remarks = list(_remarks(location, notes))
    ignored = len(entries) - len(names)
    if tables := [entry.name for entry in entries if entry.name.lower().endswith(_TABLES)]:
        remarks.append(f"{tables[0]} may have labels: convert {location / tables[0]} to read them")
    if names and ignored:
        files = "1 file" if ignored == 1 else f"{ignored:,} files"
        remarks.append(f"{files} directly in {location}, in no class folder: left out")
    return found.build("folder", classes=classes, remarks=remarks)


@dataclass(frozen=True, slots=True)
class _ClassFolder:
    """Folder of a class, or the source's folder as the only class; names of its inputs begin with ``prefix``."""

    source: Location
    folder: Location
    prefix: str
    label: int
    hidden: bool


def is_taken(name: str, *, hidden: bool) -> bool:
    """Return whether to list an entry: a hidden one only if ``hidden`` is true, one such as .DS_Store never."""
    return not name.startswith(".") or (hidden and name not in _OF_PROGRAMS and not name.startswith("._"))


def _list_class(folder: _ClassFolder) -> FoundPart:
    walk = _Walk(str(folder.source), hidden=folder.hidden)
    return FoundPart(_files_below(folder.folder, folder.prefix, folder.label, walk), walk.notes)


def _files_below(folder: Location, prefix: str, label: int, walk: _Walk) -> list[Input]:
    """List the files below a class's folder that may be images, depth first, sorted by name."""
    if isinstance(folder, Folder):
        return list(walk.files_below(str(folder), prefix, label, set()))
    # List all files at once, because a request to an object store lists a thousand objects of any depth.
    files = sorted((name.split("/"), size) for name, size in folder.files())
    folders = {tuple(parts[:depth]) for parts, _ in files for depth in range(1, len(parts))}
    found = []
    for parts, size in files:
        name = prefix + "/".join(parts)
        odd = folder.is_odd(name)
        if (odd or walk.takes(parts, prefix)) and (size or tuple(parts) not in folders) and walk.may_be_image(name):
            path = str(folder / "/".join(parts))
            found.append(Input(printable(name), label, path, 0, size, problem=_ODD_KEY if odd else ""))
    return found


def refuse_class_splits(listing: Listing, location: Location) -> None:
    """Raise UsageError if all classes that have images are named like splits.

    If only one class has images, raise only if all of its images lie in sub-folders of the class.
    """
    names, inputs = listing.classes, listing.inputs
    if not any(map(split_of_word, names)):
        return
    # Find the first input of each class by bisection, because the inputs are sorted by label.
    first = [bisect_left(inputs, label, key=lambda one: one.label) for label in range(len(names))]
    used = [
        name for label, name in enumerate(names) if first[label] < len(inputs) and inputs[first[label]].label == label
    ]
    if len(used) == 1 and split_of_word(used[0]) and all(one.name.count("/") > 1 for one in inputs):
        refuse(used, location, "; if it is a class, name it in a file for --classes")
    refuse_splits(used, location)


class _Walk:
    """Walk over the files below a local folder; ``notes`` has messages on entries that are left out."""

    def __init__(self, root: str, *, hidden: bool) -> None:
        self.notes: Notes = {}
        self._root, self._hidden = root, hidden

    def takes(self, parts: Sequence[str], prefix: str) -> bool:
        """Return whether :func:`is_taken` accepts every component of a path; if not, count the path as hidden."""
        if all(is_taken(part, hidden=self._hidden) for part in parts):
            return True
        add_note(self.notes, _HIDDEN, prefix + "/".join(parts))
        return False

    def may_be_image(self, name: str) -> bool:
        """Return whether a file's suffix may belong to an image; if not, count the file as not an image."""
        if not name.lower().endswith(NO_IMAGES):
            return True
        add_note(self.notes, _NO_IMAGE, name)
        return False

    def files_below(self, path: str, prefix: str, label: int, parents: set[tuple[int, int]]) -> Iterator[Input]:
        """Yield the files below ``path``, sorted by name; follow links, except to ``parents``, the folders above."""
        try:
            own = os.stat(path)  # noqa: PTH116
            with os.scandir(path) as found:
                visible = (entry for entry in found if self.takes((entry.name,), prefix))
                entries = sorted(visible, key=lambda entry: entry.name)
        except OSError as error:
            yield Input(printable(prefix), label, path, problem=f"folder cannot be listed: {error.strerror}")
            return
        if path != self._root and os.path.islink(path):  # noqa: PTH114
            self._check_link(prefix, path)
        for entry in entries:
            name = prefix + entry.name
            if is_folder(entry):
                inner = {*parents, (own.st_dev, own.st_ino)}
                try:
                    status = entry.stat()
                # A path of more than 4,096 bytes, for instance, cannot be read.
                except OSError as error:
                    problem = f"folder cannot be listed: {error.strerror}"
                    yield Input(printable(name), label, entry.path, problem=problem)
                    continue
                if (status.st_dev, status.st_ino) not in inner:
                    yield from self.files_below(entry.path, name + "/", label, inner)
            elif not self.may_be_image(name):
                continue
            elif _is_file(entry):
                if entry.is_symlink():
                    self._check_link(name, entry.path)
                yield Input(printable(name), label, entry.path)
            else:
                yield Input(printable(name), label, entry.path, problem=_no_file(entry))

    def _check_link(self, name: str, path: str) -> None:
        if not is_inside(self._root, path):
            add_note(self.notes, _OUTSIDE, name)


def _remarks(source: Location, notes: Notes) -> Iterator[str]:
    for key, one, several, outcome in (
        (_NO_IMAGE, "file that is not an image", "files that are not images", "left out"),
        (_HIDDEN, "hidden file or folder", "hidden files and folders", "left out; --hidden takes them"),
        (_OUTSIDE, f"link leads out of {source}", f"links lead out of {source}", "followed"),
    ):
        if key in notes:
            count, name = notes[key]
            yield f"{count:,} {one if count == 1 else several}, such as {printable(name)}: {outcome}"


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # The symbolic link leads to itself, directly or by other links.
        return False


def _no_file(entry: os.DirEntry[str]) -> str:
    """Describe, for a message, an entry that is neither a file nor a folder, nor a link to a file or folder."""
    try:
        kind = kind_of(entry.stat().st_mode)
    except OSError:
        return "a link to nothing"
    return f"a link to {kind}" if entry.is_symlink() else f"{kind}, not a regular file"


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a folder; raise UsageError if :func:`require_readable` rejects the folder."""
    if probe.is_folder:
        require_readable(probe)
    return probe.is_folder


FORMAT = SourceFormat(list_folder, options=("hidden",), recognizes=recognizes, object_stores=True, takes_engine=True)
