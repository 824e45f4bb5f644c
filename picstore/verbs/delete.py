"""``picstore.delete``: delete images from a data set by id."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from picstore.errors import Conflict, UsageError
from picstore.results import DeleteResult
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Where, locate
from picstore.storage.location.text_files import text_of_file

_MAX_CONFLICTS = 100
_MAX_FILE = 1 << 30  # bytes, a hundred million ids


def delete(dataset: Where, ids: Iterable[int] | str | os.PathLike[str], *, root: Where | None = None) -> DeleteResult:
    """Delete images from a data set.

    A small file lists the deleted images, and readers skip them; no image is rewritten. Readers that have the data set
    open keep the version that they opened. Others may edit the data set meanwhile.

    Args:
        dataset: path or URL.
        ids: of the images, or a file of ids, one per line.
        root: folder of the images of an index, which you trust; None where the index says it, if you made it.

    Raises:
        UsageError: there are no ids, the data set does not have one of them, or a line is none.
        NotADataset, Unfinished, UnsupportedVersion, Damage: the data set cannot be opened.
    """
    chosen = set(read_ids(Path(ids)) if isinstance(ids, (str, os.PathLike)) else ids)
    if not chosen:
        raise UsageError("nothing to delete; give --id N or --ids FILE, in Python ids=[N] or ids=FILE")
    for _ in range(_MAX_CONFLICTS):
        before = Dataset(dataset, root=root)
        with contextlib.suppress(Conflict):  # others may edit it meanwhile, which changes no id
            after = before.without(chosen).save()
            return DeleteResult(
                dataset=str(locate(dataset)),
                uuid=after.uuid,
                images=len(after),
                deleted=len(before) - len(after),
            )
    raise UsageError(f"{locate(dataset)} is edited all the time; nothing was deleted, begin again")


def read_ids(file: Path) -> list[int]:
    """Read a file of ids, one per line; UsageError for a line that is none."""
    if (size := file.stat().st_size) > _MAX_FILE:
        raise UsageError(f"{file} has {size:,} bytes; at most {_MAX_FILE:,} are possible")
    ids = []
    for number, line in enumerate(text_of_file(file.read_bytes(), "replace").splitlines(), start=1):
        if not line.strip():
            continue
        if not (line.strip().isascii() and line.strip().isdecimal() and len(line.strip()) < 19):
            raise UsageError(f"line {number} of {file} is {line[:40]!r}; give one id a line")
        ids.append(int(line))
    return ids
