"""index.json of MDS and LitData: read with a size limit, and checks of its file names and counts."""

from __future__ import annotations

from typing import Any

from picstore.errors import NotADataset, UsageError
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.named_files import named_file
from picstore.prepare.sources.source_file import read_whole
from picstore.storage.location.resolve import Location

_MAX_INDEX = 1 << 30  # bytes


def read_index(folder: Location, entries: str) -> dict[str, Any]:
    """Read the object in ``folder/index.json``; UsageError unless its member ``entries`` is a list of objects."""
    path = folder / "index.json"
    if not path.is_file():
        raise NotADataset(f"{folder} has no index.json")
    index = json_object(read_whole(path, _MAX_INDEX)) or {}
    found = index.get(entries)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UsageError(f"{path} is no index that can be read: it needs a list of objects, {entries!r}")
    return index


def listed_file(folder: Location, name: Any) -> Location:
    """Location of a file that the index names; UsageError unless it lies below the index's folder."""
    try:
        return named_file(folder, name)
    except UsageError as error:
        raise UsageError(f"{folder / 'index.json'}: {error}") from error


def checked_count(value: Any, file: object) -> int:
    """Check that a value is a count or size below 2⁶³; UsageError, naming ``file``, if not."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise UsageError(f"{file}: {value!r} stands where a count must be, 0 or a whole number above it")
    return value
