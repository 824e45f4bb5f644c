"""Small JSON files that describe a data set: read with a limit, and checked where a value becomes a name or number."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.sources.inputs import SourceFile
from picstore.prepare.sources.samples import json_object
from picstore.storage.location.resolve import Location

MAX_INDEX = 1 << 30  # bytes


def read_index(folder: Location, entries: str) -> dict[str, Any]:
    """The object in ``folder/index.json``, of which ``entries`` is a list of objects.

    Raises:
        NotADataset: there is no such file.
        UsageError: it is not what it should be.
    """
    path = folder / "index.json"
    if not path.is_file():
        raise NotADataset(f"{folder} has no index.json")
    try:
        with SourceFile(path) as file:
            if file.size > MAX_INDEX:
                raise UsageError(f"{path} has {file.size:,} bytes; {MAX_INDEX:,} can be read")
            index = json_object(file.read(0, file.size))
    except Damage as error:
        raise NotADataset(f"{path} {error.what}") from error
    found = index.get(entries) if index is not None else None
    if index is None or not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UsageError(f"{path} is not the index of a data set: it has no list of {entries}")
    return index


def plain_name(name: Any, place: object) -> str:
    """A name of a file that stays in its folder."""
    if not isinstance(name, str) or not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise UsageError(f"{place}: {name!r} is not the name of a file in its folder")
    return name


def whole(value: Any, place: object) -> int:
    """A count or a size."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise UsageError(f"{place}: {value!r} where a number should be")
    return value
