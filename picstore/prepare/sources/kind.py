"""What a kind of source is, and a first look at a place to tell which kind it is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from picstore.errors import Damage, MissingDependency
from picstore.prepare.inputs import Listing, SourceFile, entries_of

HEAD = 1 << 12  # bytes of a file that tell its kind


@dataclass(frozen=True)
class Glance:
    """A place and what can be seen of it without reading it: what sources are told apart by.

    Attributes:
        path: the place.
        is_folder: what does not exist is none.
        folders: names of the sub-folders, sorted.
        files: names of all else that lies directly in the folder, sorted.
    """

    path: Path
    is_folder: bool
    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def at(cls, path: Path) -> Glance:
        """Look at a place."""
        if not path.is_dir():
            return cls(path, is_folder=False)
        entries = [(entry.name, entry.is_dir()) for entry in entries_of(path)]
        folders = tuple(name for name, is_folder in entries if is_folder)
        return cls(path, True, folders, tuple(name for name, is_folder in entries if not is_folder))

    def files_ending(self, *suffixes: str) -> list[str]:
        """Names in the folder that end so, sorted."""
        return [name for name in self.files if name.lower().endswith(suffixes)]

    def head(self, name: str = "") -> bytes:
        """The first bytes of the file, or of one in the folder; empty where it cannot be read."""
        return head_of(self.path / name)


def head_of(path: Path) -> bytes:
    """The first HEAD bytes of a file, or as many as can be read."""
    try:
        with SourceFile(path) as file:
            return file.read(0, min(HEAD, file.size))
    except Damage:
        return b""


@dataclass(frozen=True)
class Source:
    """A kind of source; an object of the entry points ``picstore.sources`` is one, or only its ``list``.

    Attributes:
        list: lists the inputs of a path, with options as keywords.
        options: names of the options that ``list`` takes.
        guess: whether ``--source auto`` should take a place for one of these; None if never.
    """

    list: Callable[..., Listing]
    options: tuple[str, ...] = ()
    guess: Callable[[Glance], bool] | None = None


def missing(library: str, extra: str) -> MissingDependency:
    """The error for a library that a source needs."""
    return MissingDependency(f"reading this needs {library}: pip install 'picstore[{extra}]'")
