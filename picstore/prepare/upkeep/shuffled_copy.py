"""Shuffle of a dataset: write a permuted copy (docs/format.md, "Shuffle").

``transpose``: the records of file j of stream s are permuted and become file s of stream j: each byte is read and
written once. ``uniform``: every record goes to a uniformly drawn file, then every file is permuted: each byte is read
and written twice, and every order is equally likely. Each task writes one file, whose records it holds in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from picstore import rng
from picstore._version import __version__
from picstore.arrays import I64, Table
from picstore.display.progress import Progress, ProgressCallback, begin_stage, progress_callback
from picstore.errors import PicstoreError, UsageError, counted
from picstore.prepare.convert import resumable_job
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.engine import worker_processes
from picstore.storage.dataset import Dataset
from picstore.storage.edits.edit_entries import Edits, write_npy_file
from picstore.storage.edits.live_records import SelectedRecords
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.container_index import FileSummary
from picstore.storage.format.container_writer import FileWriter
from picstore.storage.format.read_container import unpack_container
from picstore.storage.format.record import Record, copy_record
from picstore.storage.joined_manifest import NO_SHIFT, RecordShift
from picstore.storage.joined_reader import JoinedFolders
from picstore.storage.location.resolve import (
    LEDGER,
    UNFINISHED,
    Root,
    Where,
    WritableLocation,
    file_name,
    locate,
    locate_writable,
    read_at,
)
from picstore.storage.manifest import Manifest
from picstore.storage.manifest_writer import publish_dataset

METHODS = ("transpose", "uniform")

# Row of an array that describes one container: byte range in a file, number of records, and the header's checksum.
EXTENT = np.dtype(
    [("file", "<u4"), ("ordinal", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("records", "<u4"), ("header_crc", "<u4")]
)


@dataclass(frozen=True, slots=True)
class FileTask:
    """Task to write one file of the shuffled copy: the permuted records of some containers.

    Attributes:
        extents: byte ranges of the containers in stream ``source_stream`` of the dataset at ``source``, EXTENT
            (containers,). An extent's own field ``file`` is the number of the file that holds the container.
        deleted: for each container, the indices of the records to omit; empty if no record is omitted.
        shift: change of ids and labels, if several datasets are joined.
    """

    source: Root
    source_stream: int
    extents: Table
    root: WritableLocation
    stream: int
    file: int
    container_size: int
    fields: tuple[str, ...]
    key: int
    deleted: tuple[I64, ...] = ()
    shift: RecordShift = NO_SHIFT


@dataclass(frozen=True, slots=True)
class DealTask:
    """Task of a ``uniform`` shuffle's first pass: sort a file's records into containers, each for one target file."""

    source: FileTask
    files: int


def shuffle(
    source: Where | Dataset,
    destination: Where,
    *,
    seed: int,
    method: str,
    workers: int | worker_processes.Engine,
    progress: Progress | None = None,
) -> Manifest:
    """Write a shuffled copy of a dataset.

    Arguments and errors are those of :func:`picstore.shuffle`. An open dataset as ``source`` may have unsaved
    deletions, or be a selection. Each worker holds one file in memory.
    """
    if method not in METHODS:
        raise UsageError(f"shuffle method {method!r} is not one of {', '.join(METHODS)}")
    dataset = source if isinstance(source, Dataset) else Dataset(locate(source))
    if dataset.manifest.references is not None:
        raise UsageError(f"{dataset.path} is an index, which the loader shuffles; convert it to shuffle its images")
    destination = locate_writable(destination)
    shape = DatasetShape(container_size=dataset.manifest.container_size, seed=seed)
    wanted = {"verb": "shuffle", "picstore": __version__, "parent": dataset.uuid, "method": method, "seed": seed}
    begun = resumable_job.new_job(**resumable_job.begin_job(destination, wanted, resume=False))
    passes = 1 if method == "transpose" else 2
    begin_stage(progress, "rows", passes * len(dataset))
    with resumable_job.hold_job(destination, begun):
        resumable_job.require_free(destination)
        if method == "transpose":
            sources = _file_tasks(dataset, destination, shape)
            tasks = deque(replace(task, stream=task.file, file=task.stream) for task in sources)
        else:
            tasks = _dealt(dataset, destination, shape, workers, progress)
        results = worker_processes.run_each(write_file, tasks, workers=workers, on_progress=progress_callback(progress))
        summaries = [summary for _, summary in results]
        begin_stage(progress, "finishing")
        if (written := sum(summary.records for summary in summaries)) != len(dataset):
            text = f"{written} of {counted(len(dataset), 'record')} were written; the source changed during the shuffle"
            raise PicstoreError(text)
        _copy_ledger(dataset, destination)
        event = {"method": method, "seed": seed, "parent": dataset.uuid}
        if isinstance(dataset.live, SelectedRecords):
            event["selection"] = dataset.live.digest
        manifest = publish_dataset(
            destination,
            summaries,
            streams=1 + max((s.stream for s in summaries), default=0),
            container_size=dataset.manifest.container_size,
            classes=dataset.manifest.classes,
            attachments=dataset.manifest.attachments,
            encode=dataset.manifest.encode,
            provenance=dataset.manifest.provenance,
            shuffle=(*dataset.manifest.shuffle, event),
            edits=_copy_columns(dataset, destination),
            counts=dataset.record_counts(),
        )
        resumable_job.remove_job(destination)
    return manifest


def _copy_ledger(dataset: Dataset, root: WritableLocation) -> None:
    """Copy or link the conversion's ledger, whose ids stay valid; copy nothing if the source is several datasets."""
    if not isinstance(dataset.path, JoinedFolders) and (ledger := dataset.path / LEDGER).is_file():
        ledger.copy_to(root / LEDGER)


def _copy_columns(dataset: Dataset, root: WritableLocation) -> Edits | None:
    """Copy the files of the dataset's columns, which stay valid because they hold values by record id."""
    edits, files = dataset.column_files()
    for npy_file in edits.npy_files:
        write_npy_file(root, npy_file, files[npy_file.file])
    return edits if edits.columns else None


def _file_tasks(dataset: Dataset, root: WritableLocation, shape: DatasetShape) -> Iterator[FileTask]:
    """Yield a task for each file of a dataset, which writes the file's permuted records to a file of equal number.

    If few records are left, as in a selection, a task joins several files of a stream (sequence of files).
    """
    rows, counts = dataset.rows, dataset.live.counts
    live_bytes = (rows["size"] * (counts / np.maximum(1, rows["records"]))).sum()
    joined = int(rows["size"].sum(dtype=np.int64) // max(1, live_bytes)) or 1
    files = rows["file"].astype(np.int64) // joined
    order = np.lexsort((rows["offset"], rows["file"], rows["stream"]))
    numbers = rows["stream"][order].astype(np.int64) << 32 | files[order]
    for group in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else []:
        if not counts[group].any():
            continue
        stream, file = int(rows["stream"][group[0]]), int(files[group[0]])
        extents = np.zeros(len(group), dtype=EXTENT)
        extents["ordinal"] = [dataset.containers.container_ref(number).ordinal for number in group]
        for name in ("file", "offset", "size", "records", "header_crc"):
            extents[name] = rows[name][group]
        source, source_stream, shift = dataset.containers.stream_source(stream)
        yield FileTask(
            source=source,
            source_stream=source_stream,
            shift=shift,
            extents=extents,
            root=root,
            stream=stream,
            file=file,
            container_size=shape.container_size,
            fields=dataset.manifest.attachments,
            key=rng.key(rng.SHUFFLE, shape.seed, stream, file),
            deleted=tuple(dataset.live.deleted_in(number) for number in group),
        )


def _dealt(
    dataset: Dataset,
    root: WritableLocation,
    shape: DatasetShape,
    workers: int | worker_processes.Engine,
    progress: Progress | None,
) -> deque[FileTask]:
    """Run the first pass of a ``uniform`` shuffle, into ``unfinished/``; return the tasks of the second pass."""
    scratch = root / UNFINISHED
    sources = list(_file_tasks(dataset, root, shape))
    deals = deque(
        DealTask(replace(task, root=scratch, stream=0, file=number, key=rng.key(rng.SHUFFLE, shape.seed)), len(sources))
        for number, task in enumerate(sources)
    )
    results = worker_processes.run_each(deal_file, deals, workers=workers, on_progress=progress_callback(progress))
    dealt = [of_file for _, of_file in results]
    targets = np.concatenate([target for target, _ in dealt]) if dealt else np.zeros(0, np.int64)
    extents = np.concatenate([extent for _, extent in dealt]) if dealt else np.zeros(0, EXTENT)
    order = np.lexsort((extents["ordinal"], extents["file"], targets))
    targets, extents = targets[order], extents[order]
    tasks: deque[FileTask] = deque()
    for number, task in enumerate(sources):
        drawn = extents[np.searchsorted(targets, number) : np.searchsorted(targets, number, side="right")]
        if len(drawn):
            tasks.append(replace(task, source=scratch, source_stream=0, extents=drawn, deleted=(), shift=NO_SHIFT))
    return tasks


def _load(task: FileTask, on_progress: ProgressCallback) -> list[Record]:
    """Read a task's live records. If a container has few, at most half, they are copied, so that it can be freed."""
    records: list[Record] = []
    for number, extent in enumerate(task.extents):
        if task.deleted and len(task.deleted[number]) == extent["records"]:
            continue
        name = file_name(task.source_stream, int(extent["file"]))
        offset, size = int(extent["offset"]), int(extent["size"])
        ref = ContainerRef(name, offset, task.source_stream, int(extent["file"]), int(extent["ordinal"]))
        buffer = read_at(task.source / name, offset, size, file=name)
        count, crc = int(extent["records"]), int(extent["header_crc"])
        container = unpack_container(buffer, ref=ref, fields=task.fields, records=count, header_crc=crc)
        task.shift.apply(container)
        live = np.ones(len(container), dtype=np.bool_)
        if task.deleted:
            live[task.deleted[number]] = False
        if not container.good[live].all():
            raise container.damage[0]
        found = (container.record(k) for k in np.flatnonzero(live).tolist())
        records.extend(found if 2 * live.sum() > len(live) else map(copy_record, found))
        on_progress(int(live.sum()))
    return records


def _file_writer(task: FileTask) -> FileWriter:
    size, fields = task.container_size, task.fields
    return FileWriter(task.root, stream=task.stream, file=task.file, container_size=size, fields=fields)


def write_file(task: FileTask, on_progress: ProgressCallback) -> FileSummary:
    """Read the records of a task's containers, permute them, and write them as one file of the shuffled copy."""
    records = _load(task, on_progress)
    with _file_writer(task) as writer:
        for k in rng.permutation(task.key, len(records)):
            writer.add(records[k])
        return writer.close()


def deal_file(task: DealTask, on_progress: ProgressCallback) -> tuple[I64, Table]:
    """Write one file's records sorted by target file; each target's records have their own containers.

    Return the number of each written container's target file, int64 (containers,), and the container's byte range,
    EXTENT (containers,).
    """
    source = task.source
    records = _load(source, on_progress)
    ids = np.array([record.id for record in records], dtype=np.uint64)
    targets = rng.below(source.key, ids, task.files)
    container_targets: list[int] = []
    with _file_writer(source) as writer:
        order = np.argsort(targets, kind="stable")
        for k, following in zip(order, [*order[1:], None], strict=True):
            writer.add(records[k])
            if following is None or targets[following] != targets[k]:
                count = writer.end_container()
                container_targets += [int(targets[k])] * (count - len(container_targets))
        summary = writer.close()
    extents = np.zeros(len(summary.footer), dtype=EXTENT)
    extents["file"], extents["ordinal"] = source.file, np.arange(len(extents))
    for name in ("offset", "size", "records", "header_crc"):
        extents[name] = summary.footer[name]
    return np.array(container_targets, dtype=np.int64), extents
