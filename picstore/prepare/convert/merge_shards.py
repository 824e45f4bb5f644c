"""``picstore merge``: bring the shards of a conversion together and finish the dataset.

A shard's rows equal the rows of a single run, so merging links or copies files and calls :func:`finish_dataset`. This
process links rows, in 0.1 ms per file; tasks of the engine copy the rows that cannot be linked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from picstore.display.progress import ProgressCallback
from picstore.errors import NotADataset, Unfinished, UsageError
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.finish_dataset import ConversionResult, finish_dataset, read_result
from picstore.prepare.convert.row_division import Shard
from picstore.prepare.convert.row_writer import copy_row_counts
from picstore.prepare.engine import worker_processes
from picstore.storage.location.resolve import (
    MANIFEST,
    Location,
    Where,
    WritableLocation,
    locate,
    locate_writable,
    map_concurrently,
)

# Fields of a shard's job file that are not settings of the conversion: what this run derived from the source.
_NOT_SETTINGS = ("rows", "classes", "attachments")


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Task to copy a finished row's files from folder ``source`` to folder ``root``, where they have the same names."""

    source: Location
    root: WritableLocation
    row: int
    files: tuple[str, ...]


def merge(
    destination: Where, sources: Sequence[Where] = (), *, workers: int | worker_processes.Engine
) -> ConversionResult:
    """Join the shards of a conversion into one dataset, with the bytes that a single run would have written.

    Arguments and errors are those of :func:`picstore.merge`, where ``sources`` is called ``shards``.
    """
    root = locate_writable(destination)
    begun = {location: _read_shards(location) for location in map(locate, sources)}
    if (root / MANIFEST).is_file():
        return _read_merged(root, begun.values())
    own = {} if begun else _read_shards(root)
    for found in (*begun.values(), resumable_job.read_shards(root)):
        for shard, document in found.items():
            own[shard] = resumable_job.begin_job(root, document, resume=True, shard=shard)
    outline = _require_one_job(root, own)
    with contextlib.ExitStack() as held:
        for shard, document in own.items():
            held.enter_context(resumable_job.hold_job(root, document, shard))
            resumable_job.require_free(root, shard)
        finished = set(ledger.finished_rows(root, outline["rows"]))
        for location in begun:
            rows = set(ledger.finished_rows(location, outline["rows"]))
            _copy_rows(list(_row_copies(location, root, rows - finished)), workers)
            finished |= rows
        _require_rows(root, finished, outline["rows"], next(iter(own)).count)
        rows, classes, attachments = (outline[name] for name in _NOT_SETTINGS)
        result = finish_dataset(root, _settings(outline), {}, rows=rows, classes=classes, attachments=attachments)
        resumable_job.remove_job(root)
    return result


def _settings(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _NOT_SETTINGS}


def _read_shards(location: Location) -> dict[Shard, dict[str, Any]]:
    if shards := resumable_job.read_shards(location):
        return shards
    raise NotADataset(f"{location} holds no shard of a conversion; make one with `picstore convert --shard`")


def _read_merged(root: WritableLocation, begun: Iterable[dict[Shard, dict[str, Any]]]) -> ConversionResult:
    """Return the result of an earlier merge of the same shards; remove the shards' jobs that it left in ``root``."""
    own = resumable_job.read_shards(root)
    documents = [document for shards in (*begun, own) for document in shards.values()]
    if not documents:
        raise UsageError(f"{root} is already a dataset; name a folder with unmerged shards")
    result = read_result(root, _settings(documents[0]))
    with contextlib.ExitStack() as held:
        for shard, document in own.items():
            held.enter_context(resumable_job.hold_job(root, document, shard))
        if own:
            resumable_job.remove_job(root)
    return result


def _require_one_job(root: Location, shards: dict[Shard, dict[str, Any]]) -> dict[str, Any]:
    """Return the content that the job files of all shards share; raise UsageError if any two of the files differ."""
    (first, outline), *others = shards.items()
    for shard, document in others:
        if shard.count != first.count:
            raise UsageError(f"{root} holds shards {first} and {shard}, not of one conversion; remove one's files")
        for name in outline:
            if document.get(name) != outline[name]:
                raise UsageError(
                    f"{root} holds shards of different conversions: {name} of {first} is {outline[name]!r}, "
                    f"of {shard} {document.get(name)!r}; remove the files of one, and convert with the same settings"
                )
    return outline


def _require_rows(root: Location, finished: set[int], rows: int, count: int) -> None:
    """Raise Unfinished if a row below ``rows`` is not in ``finished``; ``count`` is the number of shards."""
    missing = sorted(set(range(rows)) - finished)
    if missing:
        late = sorted({row % count for row in missing})
        names = ", ".join(f"{index}/{count}" for index in late[:8]) + (", …" if len(late) > 8 else "")
        raise Unfinished(
            f"{root} lacks {len(missing)} of {rows} rows, of the shards {names}; convert these with --resume"
        )


def _row_copies(source: Location, root: WritableLocation, rows: set[int]) -> Iterator[RowCopy]:
    row_of = {f"{row:06d}.pic": row for row in rows}
    by_row: dict[int, list[str]] = {row: [] for row in sorted(rows)}
    for name, _ in source.files():
        if (row := row_of.get(name.rpartition("/")[2])) is not None:
            by_row[row].append(name)
    for row, names in by_row.items():
        yield RowCopy(source, root, row, tuple(names))


def _copy_rows(copies: Sequence[RowCopy], workers: int | worker_processes.Engine) -> None:
    linked = map_concurrently(_link_row, copies)
    unlinked = [copy for copy, done in zip(copies, linked, strict=True) if not done]
    list(worker_processes.run_each(copy_row, unlinked, workers=workers))


def _link_row(task: RowCopy) -> bool:
    if not all((task.source / name).link_to(task.root / name) for name in task.files):
        return False
    _finish_row(task)
    return True


def copy_row(task: RowCopy, _: ProgressCallback) -> None:
    """Copy the files of a row of the job, up to 16 at a time, because copying waits for a disk or object store."""
    for _copied in map_concurrently(lambda name: (task.source / name).copy_to(task.root / name), task.files):
        pass
    _finish_row(task)


def _finish_row(task: RowCopy) -> None:
    """Copy the record counts of a row of the job, and then its ledger fragment, which declares the row finished."""
    copy_row_counts(task.source, task.root, task.row)
    ledger.copy_fragment(task.source, task.root, task.row)
