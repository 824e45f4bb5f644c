"""What a kind of source is, and a first look at a place to tell which kind it is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from picstore.errors import Damage, MissingDependency, UsageError
from picstore.prepare.sources.inputs import Listing, SourceFile, entries_of
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, Where, locate

HEAD = 1 << 12  # bytes of a file that tell its kind


@dataclass(frozen=True)
class SourceProbe:
    """A place and what can be seen of it without reading it: what sources are told apart by.

    Attributes:
        place: where it lies, here or in an object store.
        is_folder: what does not exist is none.
        folders: names of the sub-folders, sorted.
        files: names of all else that lies directly in the folder, sorted.
    """

    place: Location
    is_folder: bool
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def at(cls, where: Where) -> SourceProbe:
        """Look at a place."""
        place = locate(where)
        if not place.is_folder():
            return cls(place, is_folder=False)
        entries = entries_of(place)
        folders = tuple(name for name, is_folder in entries if is_folder)
        return cls(place, True, folders, tuple(name for name, is_folder in entries if not is_folder))

    @property
    def path(self) -> Path:
        """The place as a path; UsageError where it is in an object store."""
        return path_of(self.place)

    def files_ending(self, *suffixes: str) -> list[str]:
        """Names in the folder that end so, sorted."""
        return [name for name in self.files if name.lower().endswith(suffixes)]

    def head(self, name: str = "") -> bytes:
        """The first bytes of the file, or of one in the folder; empty where it cannot be read."""
        try:
            with SourceFile(self.place / name if name else self.place, window=HEAD) as file:
                return file.read(0, min(HEAD, file.size))
        except Damage:
            return b""


def path_of(place: Location) -> Path:
    """The path of a place on this machine; UsageError for one in an object store."""
    if isinstance(place, Folder):
        return place.path
    raise UsageError(f"{place} is in an object store, and a source of this kind is read from files; copy it first")


@dataclass(frozen=True)
class Source:
    """A kind of source; an object of the entry points ``picstore.sources`` is one, or only its ``list``.

    Attributes:
        list: lists the inputs of a path, with options as keywords.
        options: names of the options that ``list`` takes.
        guess: whether ``--source auto`` should take a place for one of these; None if never.
        stores: whether ``list`` takes a :class:`Location`, here or in an object store, and not a path.
    """

    list: Callable[..., Listing]
    options: tuple[str, ...] = ()
    guess: Callable[[SourceProbe], bool] | None = None
    stores: bool = False


def missing(library: str, extra: str) -> MissingDependency:
    """The error for a library that a source needs."""
    return MissingDependency(f"reading this needs {library}: pip install 'picstore[{extra}]'")
