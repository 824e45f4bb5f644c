"""``convert --retry-failed``: convert the failed inputs of a finished dataset again.

Rows with an input that can be converted now are written again; all other rows stay: the dataset becomes an unfinished
dataset without the changed rows, and its conversion is resumed. ``row_reuse`` keeps the converted images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.conversion_job import ConvertOptions, Job, convert, require_no_partition
from picstore.prepare.convert.finish_dataset import ConversionResult, read_own_manifest, read_result
from picstore.prepare.convert.input_records import convert_sample
from picstore.prepare.convert.row_division import row_slice
from picstore.prepare.convert.row_reuse import save_for_reuse
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.training_jpeg import LOSSLESS, REENCODED
from picstore.prepare.sources.inputs import Listing
from picstore.storage.location.resolve import LEDGER, MANIFEST, Location, Where, locate_writable, map_concurrently
from picstore.storage.manifest import Manifest
from picstore.storage.manifest_writer import remove_manifest


def retry_failed(listing: Listing, destination: Where, options: ConvertOptions) -> ConversionResult:
    """Convert the failed inputs again, and rewrite each row (range of inputs) in which one can be converted now.

    The result has the same bytes as a conversion, with the same number of rows, in which these inputs never failed.
    Only failed inputs, and inputs with damaged records, are read from the source. The destination is a finished dataset
    that nobody is reading, or a dataset whose retry was interrupted. Errors: see :func:`picstore.convert`.
    """
    require_no_partition(listing)
    root = locate_writable(destination)
    if (root / MANIFEST).is_file():
        job = Job.describe(root, listing, options)
        manifest = read_own_manifest(root, job.settings)
        if manifest.shuffle:
            raise UsageError(f"{root} is shuffled; retry in the dataset that convert wrote, and shuffle that")
        if manifest.edits is not None:
            raise UsageError(f"{root} was edited, which a retry would undo; retry in the dataset before the edits")
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
            return read_result(root, job.settings)
        saved = resumable_job.find_job(root, job.settings, resume=True)  # job of an interrupted retry, or None
        if saved is None:
            rows = _count_rows(root, manifest, lines)
            saved = resumable_job.new_job(**job.settings, rows=rows, retry=manifest.uuid)
        job = replace(job, saved=saved)
        with job.hold():
            _reopen(job, manifest, lines, duplicates, changed)
        if listing.duplicates is not None:
            listing = replace(listing, duplicates=duplicates)
    return convert(listing, root, options, resume=True)


def _reopen(
    job: Job,
    manifest: Manifest,
    lines: Sequence[ledger.LedgerLine],
    duplicates: dict[int, int],
    changed: Sequence[int],
) -> None:
    """Make a finished dataset unfinished, to write again the rows that contain an input of ``changed`` (ids).

    The previous files of these rows are kept, so that the records of all other inputs can be copied. Raise Conflict if
    the dataset's manifest has changed since ``manifest`` was read.
    """
    root, rows = job.root, job.rows
    ends = [row_slice(len(lines), rows, row).stop for row in range(rows)]
    changed_rows = set(np.searchsorted(ends, changed, side="right").tolist())
    resumable_job.clear_job(root)  # Remove what an interrupted earlier retry may have left.
    # Ledger lines, by id, of the inputs that the retry need not read: duplicates, and inputs with stored records.
    settled = {line.id: line for line in lines if line.status in (LOSSLESS, REENCODED)}
    settled |= {id_: ledger.duplicate_line(lines[id_].input, id_, first) for id_, first in duplicates.items()}
    for row in sorted(changed_rows):
        ids = row_slice(len(lines), rows, row)
        files = [entry for entry in manifest.files if entry.file == row]
        save_for_reuse(root, row, files, [settled[id_] for id_ in ids if id_ in settled])

    def write_fragment(row: int) -> None:
        ids = row_slice(len(lines), rows, row)
        ledger.write_fragment(root, row, lines[ids.start : ids.stop])

    list(map_concurrently(write_fragment, (row for row in range(rows) if row not in changed_rows)))
    remove_manifest(root, manifest)


def _find_readable(listing: Listing, failed: set[int], options: ConvertOptions) -> set[int]:
    """Convert the inputs ``failed`` (ids) on trial, without writing; return the ids of the inputs that succeed."""
    settings = options.encode, options.image_timeout, listing.maps
    tasks = deque((id_, listing.inputs[id_], *settings) for id_ in sorted(failed))
    ended = worker_processes.as_engine(options.workers).run(convert_sample, tasks)
    return {id_ for (id_, *_), outcome in ended if isinstance(outcome, int)}


def _update_duplicates(
    current: dict[int, int], lines: Sequence[ledger.LedgerLine], failed: set[int], readable: set[int]
) -> dict[int, int]:
    """Map the id of each duplicate to the id of the first equal input, as if the ``readable`` inputs had never failed.

    ``current`` maps the duplicates in the present source. For an input that did not fail, the first equal input is that
    in its ledger line, unless ``current`` gives a ``readable`` input.
    """
    duplicates: dict[int, int] = {}
    for line in lines:
        first = current.get(line.id)
        if line.id in failed:
            if first not in failed and line.id not in readable:
                # The input still fails, so an equal ``first`` with a record had other bytes when it was converted.
                first = None
        elif first not in readable:
            first = None if line.of is None else duplicates.get(line.of, line.of)
        if first is not None:
            duplicates[line.id] = first
    return duplicates


def _count_rows(root: Location, manifest: Manifest, lines: Sequence[ledger.LedgerLine]) -> int:
    """Return the number of rows, the equal ranges of inputs that a conversion writes to one file of each stream.

    This is the number for which the ledger's converted inputs in each range are as many as the records in the row's
    files. Rows at the end may have no files, because all of their inputs failed. Raise PicstoreError if there is no
    such number, because the ledger then belongs to another dataset.
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
    raise PicstoreError(f"{root / LEDGER} is not of this dataset; remove {root} and convert again")
