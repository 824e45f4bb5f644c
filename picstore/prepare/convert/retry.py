"""``convert --retry-failed``: convert the failed inputs of a finished data set again.

Rows with an input that can be converted now are written again; all others stay. For this the data set becomes an
unfinished one without these rows, and the conversion is resumed. Converted images are not read from the source again;
see ``row_reuse``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.conversion_job import ConvertOptions, convert, describe_job, require_no_partition
from picstore.prepare.convert.finish_dataset import ConversionResult, read_own_manifest, read_result
from picstore.prepare.convert.row_reuse import save_for_reuse
from picstore.prepare.convert.rows import convert_sample
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.training_jpeg import LOSSLESS, REENCODED
from picstore.prepare.sources.inputs import Listing
from picstore.storage.location.resolve import (
    LEDGER,
    MANIFEST,
    Location,
    Where,
    WritableLocation,
    locate_writable,
    map_concurrently,
)
from picstore.storage.manifest import Manifest
from picstore.storage.manifest_writer import remove_manifest


def retry_failed(listing: Listing, destination: Where, options: ConvertOptions) -> ConversionResult:
    """Read the failed inputs again, and write the rows again in which one can be converted now.

    The result has the bytes of a conversion in which these inputs had never failed, if that had cut the inputs into as
    many rows. Only failed inputs, and inputs whose stored records are damaged, are read from the source.

    Args:
        destination: a finished data set that nobody reads in the meantime, or an unfinished one, which is resumed.

    Raises:
        UsageError: the data set was made of other inputs or with other settings, or is shuffled or edited; another
            process is at work on it.
        NotADataset, Damage: the data set cannot be read.
        MissingDependency: the encoder asked for is not installed.
        PicstoreError: the ledger belongs to another data set, a row dies again and again, or its files were lost.
    """
    require_no_partition(listing)
    root = locate_writable(destination)
    if (root / MANIFEST).is_file():
        settings = describe_job(listing, options)
        manifest = read_own_manifest(root, settings)
        if manifest.shuffle:
            raise UsageError(f"{root} is shuffled; retry in the data set that convert wrote, and shuffle that")
        if manifest.edits is not None:
            raise UsageError(f"{root} was edited, which a retry would undo; retry in the data set before the edits")
        lines = list(ledger.read_lines(root / LEDGER))
        failed = {line.id for line in lines if line.status == ledger.FAILED}
        failed |= {line.id for line in lines if line.of in failed}
        readable = _find_readable(listing, failed, options)
        duplicates = _update_duplicates(listing.duplicates or {}, lines, failed, readable)
        changed = [
            line.id
            for line in lines
            if line.of != duplicates.get(line.id) or (line.id in readable and line.id not in duplicates)
        ]
        if not changed:
            return read_result(root, settings)
        begun = resumable_job.find_job(root, settings, resume=True)  # of an interrupted attempt
        if begun is None:
            begun = resumable_job.new_job(**settings, rows=_count_rows(root, manifest, lines), retry=manifest.uuid)
        with resumable_job.hold_job(root, begun):
            _reopen(root, manifest, begun["rows"], lines, duplicates, changed)
        if listing.duplicates is not None:
            listing = replace(listing, duplicates=duplicates)
    return convert(listing, root, options, resume=True)


def _reopen(
    root: WritableLocation,
    manifest: Manifest,
    rows: int,
    lines: Sequence[ledger.LedgerLine],
    duplicates: dict[int, int],
    changed: Sequence[int],
) -> None:
    """Turn a finished data set into an unfinished one that lacks the rows of the inputs ``changed``.

    Conflict if its manifest is no longer ``manifest``.
    """
    ends = [resumable_job.row_slice(len(lines), rows, row).stop for row in range(rows)]
    changed_rows = set(np.searchsorted(ends, changed, side="right").tolist())
    resumable_job.clear_job(root)  # of an interrupted attempt
    # The new ledger lines of inputs that need not be read from the source.
    settled = {line.id: line for line in lines if line.status in (LOSSLESS, REENCODED)}
    settled |= {id_: ledger.duplicate_line(lines[id_].input, id_, first) for id_, first in duplicates.items()}
    for row in sorted(changed_rows):
        ids = resumable_job.row_slice(len(lines), rows, row)
        files = [entry for entry in manifest.files if entry.file == row]
        save_for_reuse(root, row, files, [settled[id_] for id_ in ids if id_ in settled])

    def write_fragment(row: int) -> None:
        ids = resumable_job.row_slice(len(lines), rows, row)
        ledger.write_fragment(root, row, lines[ids.start : ids.stop])

    for _ in map_concurrently(write_fragment, (row for row in range(rows) if row not in changed_rows)):
        pass
    remove_manifest(root, manifest)


def _find_readable(listing: Listing, failed: set[int], options: ConvertOptions) -> set[int]:
    """Return the ids of failed inputs that can be converted now."""
    tasks = deque((id_, listing.inputs[id_], options.encode, options.image_timeout) for id_ in sorted(failed))
    ended = worker_processes.as_engine(options.workers).run(convert_sample, tasks)
    return {id_ for (id_, *_), outcome in ended if isinstance(outcome, int)}


def _update_duplicates(
    current: dict[int, int], lines: Sequence[ledger.LedgerLine], failed: set[int], readable: set[int]
) -> dict[int, int]:
    """Return the duplicates, with the first input of the same bytes, as if the readable inputs had never failed.

    ``current`` has the duplicates in the source as it is. An input that did not fail stays what the ledger says,
    even if the source has changed.
    """
    duplicates: dict[int, int] = {}
    for line in lines:
        first = current.get(line.id)
        if line.id in failed:
            if first not in failed and line.id not in readable:
                first = None  # the first input has changed since it was converted
        elif first not in readable:
            first = None if line.of is None else duplicates.get(line.of, line.of)
        if first is not None:
            duplicates[line.id] = first
    return duplicates


def _count_rows(root: Location, manifest: Manifest, lines: Sequence[ledger.LedgerLine]) -> int:
    """Derive the number of rows of a finished data set: the one that gives each row the images in its files.

    Trailing rows whose inputs all failed have no files. PicstoreError if no number fits: the ledger is another's.
    """
    converted = np.array([line.status in (LOSSLESS, REENCODED) for line in lines])
    before = np.concatenate(([0], np.cumsum(converted)))
    stored = np.zeros(1 + max((entry.file for entry in manifest.files), default=0), dtype=np.int64)
    for entry in manifest.files:
        stored[entry.file] += entry.records
    trailing = len(lines) - 1 - int(np.flatnonzero(converted)[-1]) if converted.any() else len(lines) - 1
    for rows in range(len(stored), len(stored) + trailing + 1):
        ends = np.arange(rows + 1) * len(lines) // rows
        images = np.diff(before[ends])
        if np.array_equal(images[: len(stored)], stored) and not images[len(stored) :].any():
            return rows
    raise PicstoreError(f"{root / LEDGER} is not of this data set; remove {root} and convert again")
