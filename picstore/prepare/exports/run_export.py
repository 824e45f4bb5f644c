"""Export a dataset: its JPEGs, labels, extras and attachments, unchanged, in formats that other libraries read.

The only exception is that maps of uint16 in another form become PNG. Tasks of the engine read the indexes, the format
divides the records into parts by the indexes alone, and tasks write the parts. So the files depend neither on the
number of tasks nor on their order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.display.progress import Progress, ProgressCallback, begin_stage, progress_callback
from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.engine import worker_processes
from picstore.prepare.exports.croissant import write_export_croissant
from picstore.prepare.exports.export_format import (
    MAX_SHARD_SIZE,
    ExportFormat,
    Outline,
    Part,
    extra_object,
    remove_partial_files,
    to_json,
)
from picstore.prepare.exports.write_folder import FolderFormat
from picstore.prepare.exports.write_mds import MdsFormat
from picstore.prepare.exports.write_parquet import ParquetFormat
from picstore.prepare.exports.write_webdataset import WebDatasetFormat
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container
from picstore.storage.format.maps import export_map
from picstore.storage.format.record import Record, extra_to_json
from picstore.storage.location.atomic_file import make_folder, sync, sync_folder
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import locate, map_concurrently

_UNFINISHED = ".unfinished"  # folder of files being written; begins with a dot, unlike the names of class folders
_TASKS_A_WORKER = 4  # number of tasks per worker when tasks read the indexes of containers
# Smallest number of bytes of JPEGs per writing task, because a container with records of two tasks is read twice.
_TASK_SIZE = 64 << 20
_FORMATS: dict[str, type[ExportFormat]] = {
    "folder": FolderFormat,
    "webdataset": WebDatasetFormat,
    "mds": MdsFormat,
    "parquet": ParquetFormat,
}
FORMATS = tuple(_FORMATS)


@dataclass(frozen=True, slots=True)
class Exported:
    """Number of records written, size of their JPEGs in bytes, number of damaged records, and messages for the user."""

    images: int
    bytes: int
    lost: int
    remarks: list[str]


def export(
    source: Path | Dataset,
    out: Path,
    *,
    format: str,
    shard_size: int = 256 << 20,
    workers: int | worker_processes.Engine,
    progress: Progress | None = None,
) -> Exported:
    """Write every record of a dataset in stored order. Damaged records are left out and counted.

    The files are written to ``out/.unfinished`` and moved to ``out`` when all are complete and durable.
    ``out/.unfinished`` exists until ``out`` is complete, even if the process is killed; only an error in writing
    removes it earlier.

    Args:
        source: path of a finished dataset, or an open dataset.
        out: a folder that does not exist or is empty.
        format: one of FORMATS.
        shard_size: approximate size of a tar, shard or Parquet file in bytes.
        workers: number of processes, or an engine that runs tasks; the files do not depend on it.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion, Damage: the dataset cannot be opened.
        UsageError: ``out`` is not empty, or the format cannot take the dataset.
        OSError: a file cannot be written.
    """
    dataset = source if isinstance(source, Dataset) else Dataset(source)
    if not 1 <= shard_size <= MAX_SHARD_SIZE:
        raise UsageError(f"shards of {shard_size:,} bytes; 1 to {MAX_SHARD_SIZE:,} are possible")
    if dataset.foreign:
        raise UsageError(
            f"{dataset.path} is an index of other files than upright JPEGs ({dataset.foreign:,}); convert it"
        )
    unfinished = out / _UNFINISHED
    if Folder(unfinished).exists():
        raise UsageError(f"{out} holds an export that goes on or was interrupted; if none goes on, remove {out}")
    if Folder(out).exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; choose another destination")
    make_folder(unfinished)
    try:
        opened = _open_format(format, unfinished.absolute(), dataset, shard_size)
        done = _write_records(dataset, opened, worker_processes.as_engine(workers), progress)
        remove_partial_files(unfinished)
        write_export_croissant(dataset, locate(str(unfinished)), format)
        _sync_tree(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _move_content(unfinished, out)
    return done


def _open_format(format: str, out: Path, dataset: Dataset, shard_size: int) -> ExportFormat:
    if format not in FORMATS:
        raise UsageError(f"format {format!r}; there are {', '.join(FORMATS)}")
    return _FORMATS[format](out, dataset.classes, shard_size, dataset.manifest.attachments)


def _write_records(
    dataset: Dataset, format: ExportFormat, engine: worker_processes.Engine, progress: Progress | None
) -> Exported:
    format.begin()
    on_progress = progress_callback(progress)
    begin_stage(progress, "reading indexes", len(dataset))
    outlines = _read_outlines(dataset, format, engine, on_progress)
    tasks = list(_write_tasks(dataset, format, outlines))
    begin_stage(progress, "writing", len(dataset))
    done = list(worker_processes.run_each(write_parts, tasks, workers=engine, on_progress=on_progress))
    written = [of_task for _, of_task in sorted(done, key=lambda each: each[0].parts[0].number)]
    begin_stage(progress, "finishing")
    remarks = format.close([result for each in written for result in each.results])
    if outlines.malformed:
        remarks.insert(0, f"{outlines.malformed:,} records were left out, as their extras are not JSON")
    images = sum(each.images for each in written)
    return Exported(images, sum(each.bytes for each in written), len(dataset) - images, remarks)


def _read_outlines(
    dataset: Dataset, format: ExportFormat, engine: worker_processes.Engine, on_progress: ProgressCallback
) -> Outlines:
    live = np.flatnonzero(dataset.live.counts)
    chunks = np.array_split(live, min(len(live), _TASKS_A_WORKER * engine.workers)) if len(live) else []
    tasks = [OutlineTask(dataset, tuple(chunk.tolist()), format) for chunk in chunks]
    done = list(worker_processes.run_each(outline_containers, tasks, workers=engine, on_progress=on_progress))
    return join_outlines([outlines for _, outlines in sorted(done, key=lambda each: each[0].containers)])


def _write_tasks(dataset: Dataset, format: ExportFormat, outlines: Outlines) -> Iterator[WriteTask]:
    """Divide the records into parts (files), and yield tasks, each to write parts of about _TASK_SIZE bytes in all."""
    ends = np.cumsum(outlines.sizes)
    parts: list[Part] = []
    start = end = 0
    for part in format.divide(outlines.described):
        parts.append(part)
        end += part.count
        if end == len(ends) or outlines.sizes[start:end].sum() >= _TASK_SIZE:
            yield WriteTask(
                dataset, outlines.containers[start:end], outlines.positions[start:end], format, tuple(parts)
            )
            start, parts = end, []


def _sync_tree(folder: Path) -> None:
    """Sync a folder, and the entries directly in it, to disk, because some files were written without a sync."""
    for path in (folder, *folder.iterdir()):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                sync(file.fileno())


def _move_content(unfinished: Path, out: Path) -> None:
    """Move the content of ``unfinished`` to ``out``; then remove that folder, which marks the export as incomplete."""
    for path in sorted(unfinished.iterdir()):
        path.rename(out / path.name)
    sync_folder(out)
    unfinished.rmdir()
    sync_folder(out)


@dataclass(frozen=True, slots=True)
class OutlineTask:
    """Task to describe the records of the containers with the numbers ``containers``, by reading only their indexes."""

    dataset: Dataset
    containers: tuple[int, ...]
    format: ExportFormat


@dataclass(frozen=True, slots=True)
class Outlines:
    """Records that can be exported, in stored order, as described in the indexes of their containers.

    Attributes:
        containers, positions, sizes: int64 (n,): each record's container (block of records) by number, its position in
            the container, and the size of its JPEG in bytes.
        described: result of the format's ``describe`` for each record.
        malformed: number of records that are left out because their extras are not JSON.
    """

    containers: I64
    positions: I64
    sizes: I64
    described: list[Any]
    malformed: int


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Task to write consecutive parts of an export; record k is in container ``containers[k]`` at ``positions[k]``."""

    dataset: Dataset
    containers: I64
    positions: I64
    format: ExportFormat
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """Number of records that a task wrote, bytes of their JPEGs, and the result of ``ExportFormat.write`` per part."""

    images: int
    bytes: int
    results: list[Any]


def join_outlines(parts: Sequence[Outlines]) -> Outlines:
    """Join the :class:`Outlines` of consecutive containers."""

    def join(name: str) -> I64:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])

    return Outlines(
        join("containers"),
        join("positions"),
        join("sizes"),
        [each for part in parts for each in part.described],
        sum(part.malformed for part in parts),
    )


def outline_containers(task: OutlineTask, on_progress: ProgressCallback) -> Outlines:
    """Describe the records of a task's containers from the containers' indexes."""

    def outline(number: int) -> Outlines:
        found = _outline_container(task.dataset, number, task.format)
        on_progress(int(task.dataset.live.counts[number]))
        return found

    return join_outlines(list(map_concurrently(outline, task.containers)))


def _outline_container(dataset: Dataset, number: int, format: ExportFormat) -> Outlines:
    positions: list[int] = []
    described: list[Any] = []
    malformed = 0
    try:
        container = dataset.containers.index(number)
    # NotADataset is raised if the file of the container is missing.
    except (Damage, NotADataset):
        return join_outlines([])
    for k in np.flatnonzero(dataset.live.mask(number) & container.good).tolist():
        try:
            record = _record_without_image(container, k)
        except Damage:
            continue
        try:
            outline = _outline(container, k, _with_columns(dataset.with_values(record)))
        # An extra that is nested too deep to be encoded again raises errors other than Damage.
        except (Damage, UsageError, ValueError, RecursionError):
            malformed += 1
            continue
        positions.append(k)
        described.append(format.describe(outline))
    where = np.array(positions, np.int64)
    sizes = container.index["length"][where].astype(np.int64)
    return Outlines(np.full(len(where), number, np.int64), where, sizes, described, malformed)


def _record_without_image(container: Container, k: int) -> Record:
    entry = container.index[k]
    return Record(int(entry["id"]), int(entry["label"]), b"", container.info(k), container.extra_json(k))


def _outline(container: Container, k: int, record: Record) -> Outline:
    extra = extra_object(record)
    to_json(extra)
    lengths = container.attached[k]["length"].tolist()
    attachments = {name: length for name, length in zip(container.fields, lengths, strict=True) if length}
    return Outline(record.id, record.label, extra, int(container.index["length"][k]), attachments)


def write_parts(task: WriteTask, on_progress: ProgressCallback) -> WrittenParts:
    """Write the parts of a task, each from an iterator over its records; each of the task's containers is read once."""
    images = size = 0

    def counted() -> Iterator[Record | None]:
        nonlocal images, size
        for record in _read_records(task):
            if record is not None:
                images += 1
                size += len(record.jpeg)
                on_progress(1)
            yield record

    records = counted()
    results = [task.format.write(part, islice(records, part.count)) for part in task.parts]
    return WrittenParts(images, size, results)


def _read_records(task: WriteTask) -> Iterator[Record | None]:
    """Yield a task's records in order; yield None in place of a damaged record."""
    maps = task.dataset.manifest.maps
    places = zip(task.containers.tolist(), task.positions.tolist(), strict=True)
    for number, of_container in groupby(places, key=lambda place: place[0]):
        container: Container | None = None
        with suppress(Damage, NotADataset):
            container = task.dataset.containers.read(number)
        for _, k in of_container:
            record: Record | None = None
            if container is not None:
                with suppress(Damage):
                    record = _with_columns(task.dataset.with_values(container.record(k)))
                    blobs = {
                        name: export_map(blob, record.width, record.height) if name in maps else blob
                        for name, blob in record.attachments.items()
                    }
                    record = replace(record, attachments=blobs)
            yield record


def _with_columns(record: Record) -> Record:
    """Add the record's values in the dataset's columns to its extra, unless this is neither an object nor null."""
    extra = record.extra if record.columns else None
    if not record.columns or not isinstance(extra, (dict, type(None))):
        return record
    columns = record.columns.items()
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns}
    return replace(record, extra_json=extra_to_json({**values, **(extra or {})}))
