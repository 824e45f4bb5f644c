"""``picstore.delete``: delete images from a dataset by id."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

from picstore.errors import Conflict, UsageError
from picstore.results import DeleteResult

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Where

_MAX_ATTEMPTS = 100  # An attempt to save the deletion fails if another process edits the dataset meanwhile.
_MAX_FILE = 1 << 30  # Largest size of a file of ids in bytes, enough for a hundred million ids.
_MAX_ID = (1 << 63) - 1


def delete(dataset: Where, ids: Iterable[int] | str | os.PathLike[str], *, root: Where | None = None) -> DeleteResult:
    """Delete images from a dataset.

    A small file lists the deleted images, which readers skip; no image is rewritten. `picstore shuffle` leaves deleted
    images out of its copy. Readers that have the dataset open keep the version that they opened.

    Args:
        dataset: path or URL.
        ids: ids of the images, or a file of ids, one per line.
        root: see :func:`picstore.info`.

    Raises:
        UsageError: no id is given, an id is not in the dataset, or a line of the file is not an id.
        NotADataset, Unfinished, UnsupportedVersion, Damage: the dataset cannot be opened.
    """
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import locate

    given: Any = read_ids(ids) if isinstance(ids, (str, os.PathLike)) else ids
    if not isinstance(given, Iterable):
        raise UsageError(f"ids is {given!r}; give a list, [{given!r}], or a file of ids")
    chosen = set(given)
    if not chosen:
        raise UsageError("nothing to delete; give --id N or --ids FILE, in Python ids=[N] or ids=FILE")
    if wrong := [id_ for id_ in chosen if not isinstance(id_, Integral) or not 0 <= int(id_) <= _MAX_ID]:
        raise UsageError(f"{wrong[0]!r} is not an id; give integers from 0 to 2**63 - 1")
    for _ in range(_MAX_ATTEMPTS):
        before = Dataset(dataset, root=root)
        # On a Conflict with another process's edit, try again with the new version: an edit does not change ids.
        with contextlib.suppress(Conflict):
            after = before.without(chosen).save()
            deleted = len(before) - len(after)
            return DeleteResult(dataset=str(locate(dataset)), uuid=after.uuid, images=len(after), deleted=deleted)
    raise UsageError(f"{locate(dataset)} is edited all the time; nothing was deleted, begin again")


def read_ids(ids: str | os.PathLike[str]) -> list[int]:
    """Read a file of ids, one per line; raise UsageError if a line is not an id."""
    from picstore.storage.location.local import Folder
    from picstore.storage.location.resolve import checked_path
    from picstore.storage.location.text_files import text_of_file

    file = checked_path(ids)
    if not Folder(file).is_file():
        raise UsageError(f"{file} is not a file; give a file of ids, one per line, or a list of ids")
    if (size := file.stat().st_size) > _MAX_FILE:
        raise UsageError(f"{file} has {size:,} bytes; at most {_MAX_FILE:,} are possible")
    found = []
    for number, line in enumerate(text_of_file(file.read_bytes(), "replace").splitlines(), start=1):
        if not line.strip():
            continue
        if not (line.strip().isascii() and line.strip().isdecimal() and len(line.strip()) < 19):
            raise UsageError(f"line {number} of {file} is {line[:40]!r}; give one id a line")
        found.append(int(line))
    return found
