"""Trying again what failed in a finished data set.

Rows are what can be made anew, so those that hold an input which is sound by now are; all others stay. For that the
data set becomes an unfinished one that lacks these rows, and from then on it is a conversion that is resumed. What was
converted before is not read from the source again: see ``kept``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.convert import job, ledger
from picstore.prepare.convert.convert import convert, describe, size_of
from picstore.prepare.convert.merge_shards import Converted, already, read_made
from picstore.prepare.convert.row_reuse import keep
from picstore.prepare.engine import processes
from picstore.prepare.image.settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.image.training_jpeg import LOSSLESS, REENCODED
from picstore.prepare.progress import Progress, ProgressCallback
from picstore.prepare.sources.inputs import Input, Listing
from picstore.storage.location.resolve import LEDGER, MANIFEST, Location, Where, locate, many
from picstore.storage.manifest import Manifest
from picstore.storage.manifest_copy import remove_manifest


def retry_failed(
    listing: Listing,
    destination: Where,
    *,
    encode: EncodeSettings,
    shape: job.DatasetShape,
    workers: int | processes.Engine,
    progress: Progress | None = None,
    image_timeout: float = IMAGE_TIMEOUT,
) -> Converted:
    """Read again what failed, and make anew the rows in which something is sound by now.

    The result is that of a conversion in which it had been so from the start, with one exception: how many rows there
    are was judged by some images then, which may have been among those that failed. Of the source only what failed is
    read, and what has been lost of the stored files.

    Args:
        destination: a finished data set, or an unfinished one, which is resumed. Nobody may read it in the meantime.

    Raises:
        UsageError: it was made of other inputs or with other settings, or is shuffled or edited.
    """
    root = locate(destination)
    if (root / MANIFEST).is_file():
        wanted = describe(listing, encode, shape)
        manifest = read_made(root, wanted)
        if manifest.shuffle:
            raise UsageError(f"{root} is shuffled; try again in the data set that convert wrote, and shuffle that")
        if manifest.edits is not None:
            raise UsageError(f"{root} was edited, which a retry would undo; try again in the data set that was not")
        lines = list(ledger.read_lines(root / LEDGER))
        failed = _failed(lines)
        sound = _sound(listing, failed, (encode, image_timeout), processes.as_engine(workers))
        doubles = _duplicates(listing.duplicates or {}, lines, failed, sound)
        changed = [
            line.id
            for line in lines
            if line.of != doubles.get(line.id) or (line.id in sound and line.id not in doubles)
        ]
        if not changed:
            return already(root, wanted)
        rows = _count_rows(root, manifest, lines)
        edges = [job.row_slice(len(lines), rows, row).stop for row in range(rows)]
        again = set(np.searchsorted(edges, changed, side="right").tolist())
        job.remove_job(root)  # what an earlier attempt may have left
        settled = _settled(lines, doubles)
        for row in sorted(again):
            ids = job.row_slice(len(lines), rows, row)
            files = [entry for entry in manifest.files if entry.file == row]
            keep(root, row, files, [settled[id_] for id_ in ids if id_ in settled])
        _write_fragments(root, lines, rows, again)
        job.save_job(root, {**wanted, "rows": rows})
        if listing.duplicates is not None:
            listing = replace(listing, duplicates=doubles)
        remove_manifest(root)
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


def _failed(lines: Sequence[ledger.Line]) -> set[int]:
    """The ids of those that failed, and of their duplicates."""
    failed = {line.id for line in lines if line.status == ledger.FAILED}
    return failed.union(line.id for line in lines if line.of in failed)


def _sound(listing: Listing, failed: set[int], how: tuple[EncodeSettings, float], crew: processes.Engine) -> set[int]:
    """The ids of those that failed and would not now."""
    tasks = deque((id_, listing.inputs[id_], *how) for id_ in sorted(failed))
    return {id_ for (id_, *_), outcome in crew.run(is_sound, tasks) if outcome is True}


def _duplicates(now: dict[int, int], lines: Sequence[ledger.Line], failed: set[int], sound: set[int]) -> dict[int, int]:
    """The duplicates, each with the first that has its bytes, as if what is sound now had been so from the start.

    What was settled between inputs that did not fail stays so, whatever has become of them since.

    Args:
        now: the duplicates among the inputs as they are.
    """
    doubles: dict[int, int] = {}
    for line in lines:
        first = now.get(line.id)
        if line.id in failed:
            if first not in failed and line.id not in sound:
                first = None  # the other is not any more what was converted
        elif first not in sound:
            first = None if line.of is None else doubles.get(line.of, line.of)
        if first is not None:
            doubles[line.id] = first
    return doubles


def _settled(lines: Sequence[ledger.Line], doubles: dict[int, int]) -> dict[int, ledger.Line]:
    """What the ledger will say of inputs for which nothing is read from the source, by their ids."""
    settled = {line.id: line for line in lines if line.status in (LOSSLESS, REENCODED)}
    return settled | {id_: ledger.duplicate(lines[id_].input, id_, of) for id_, of in doubles.items()}


def is_sound(task: tuple[int, Input, EncodeSettings, float], on_progress: ProgressCallback) -> bool:
    """Whether an input, given with its id, can be converted."""
    return size_of(task[1:], on_progress) is not None


def _count_rows(root: Location, manifest: Manifest, lines: Sequence[ledger.Line]) -> int:
    """How many rows the inputs were cut into: as many as give each the images that its files hold.

    Rows at the end of which nothing was converted have no files.
    """
    arrived = np.array([line.status in (LOSSLESS, REENCODED) for line in lines])
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
