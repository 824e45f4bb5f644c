"""Trying again what failed in a finished data set.

Rows are what can be made anew, so those that hold an input which is sound by now are; all others stay. For that the
data set becomes an unfinished one that lacks these rows, and from then on it is a conversion that is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from picstore.errors import PicstoreError, UsageError
from picstore.prepare import engine, job, ledger
from picstore.prepare.convert import Progress, convert, describe, size_of
from picstore.prepare.inputs import Input, Listing
from picstore.prepare.merge import Converted, already, read_made
from picstore.prepare.settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.storage.location import LEDGER, MANIFEST, Location, Where, locate, many
from picstore.storage.manifest import Manifest


def retry_failed(
    listing: Listing,
    destination: Where,
    *,
    encode: EncodeSettings,
    shape: job.Shape,
    workers: int | engine.Engine,
    progress: Progress | None = None,
    image_timeout: float = IMAGE_TIMEOUT,
) -> Converted:
    """Read again what failed, and make anew the rows in which something is sound by now.

    The result is that of a conversion in which it had been so from the start, with one exception: how many rows there
    are was judged by some images then, which may have been among those that failed.

    Args:
        destination: a finished data set, or an unfinished one, which is resumed. Nobody may read it in the meantime.

    Raises:
        UsageError: it was made of other inputs or with other settings, or is shuffled.
    """
    root = locate(destination)
    if (root / MANIFEST).is_file():
        wanted = describe(listing, encode, shape)
        manifest = read_made(root, wanted)
        if manifest.shuffle:
            raise UsageError(f"{root} is shuffled; try again in the data set that convert wrote, and shuffle that")
        lines = list(ledger.read_lines(root / LEDGER))
        changed = _changed(listing, lines, (encode, image_timeout), engine.as_engine(workers))
        if not changed:
            return already(root, wanted)
        rows = _count_rows(root, manifest, lines)
        edges = [job.row_slice(len(lines), rows, row).stop for row in range(rows)]
        again = set(np.searchsorted(edges, changed, side="right").tolist())
        job.end(root)  # what an earlier attempt may have left
        _write_fragments(root, lines, rows, again)
        job.remember(root, {**wanted, "rows": rows})
        (root / MANIFEST).remove()
    return convert(
        listing,
        root,
        encode=encode,
        shape=shape,
        workers=workers,
        resume=True,
        progress=progress,
        image_timeout=image_timeout,
    )


def _changed(
    listing: Listing, lines: Sequence[ledger.Line], how: tuple[EncodeSettings, float], crew: engine.Engine
) -> list[int]:
    """The ids of those that failed and would not now, and of those that are duplicates of another input now."""
    duplicates = listing.duplicates or {}
    changed = [line.id for line in lines if line.of != duplicates.get(line.id)]
    failed = deque((line.id, listing.inputs[line.id], *how) for line in lines if line.status == ledger.FAILED)
    for (id_, *_), outcome in crew.run(is_sound, failed):
        if outcome is True:
            changed.append(id_)
    return changed


def is_sound(task: tuple[int, Input, EncodeSettings, float], report: engine.Report) -> bool:
    """Whether an input, given with its id, can be converted."""
    return size_of(task[1:], report) is not None


def _count_rows(root: Location, manifest: Manifest, lines: Sequence[ledger.Line]) -> int:
    """How many rows the inputs were cut into: as many as give each the images that its files hold.

    Rows at the end of which nothing was converted have no files.
    """
    arrived = np.array([line.status in (ledger.LOSSLESS, ledger.REENCODED) for line in lines])
    before = np.concatenate(([0], np.cumsum(arrived)))
    held = np.zeros(1 + max((entry.file for entry in manifest.files), default=0), dtype=np.int64)
    for entry in manifest.files:
        held[entry.file] += entry.records
    lost = len(lines) - 1 - int(np.flatnonzero(arrived)[-1]) if arrived.any() else len(lines) - 1
    for rows in range(len(held), len(held) + lost + 1):
        edges = np.arange(rows + 1) * len(lines) // rows
        images = np.diff(before[edges])
        if np.array_equal(images[: len(held)], held) and not images[len(held) :].any():
            return rows
    raise PicstoreError(f"{root / LEDGER} is not of this data set; remove {root} and convert again")


def _write_fragments(root: Location, lines: Sequence[ledger.Line], rows: int, again: set[int]) -> None:
    """Declare the rows finished that stay."""

    def write(row: int) -> None:
        ids = job.row_slice(len(lines), rows, row)
        ledger.write_fragment(root, row, lines[ids.start : ids.stop])

    for _ in many(write, (row for row in range(rows) if row not in again)):
        pass
