"""Export a data set: its JPEGs, labels, extras and attachments, unchanged, in formats that other libraries read.

Tasks of the engine read the indexes, the format divides the records into parts by what the indexes tell, and tasks
write the parts (``tasks.py``). So the files depend neither on the number of tasks nor on their order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from picstore.errors import UsageError
from picstore.prepare.engine import worker_processes
from picstore.prepare.exports.export_format import MAX_SHARD_SIZE, ExportFormat, Part, remove_partial_files
from picstore.prepare.exports.tasks import (
    Outlines,
    OutlineTask,
    WriteTask,
    join_outlines,
    outline_containers,
    write_parts,
)
from picstore.prepare.exports.write_folder import FolderFormat
from picstore.prepare.exports.write_mds import MdsFormat
from picstore.prepare.exports.write_parquet import ParquetFormat
from picstore.prepare.exports.write_webdataset import WebDatasetFormat
from picstore.prepare.progress import Progress, ProgressCallback, begin_stage, progress_callback
from picstore.storage.dataset import Dataset
from picstore.storage.location.atomic_file import make_folder, sync, sync_folder

_UNFINISHED = ".unfinished"  # no folder of a class has such a name
_TASKS_A_WORKER = 4  # that read indexes
_TASK_SIZE = 64 << 20  # bytes of JPEGs, where a part has less; a task reads its first and last container whole
FORMATS = ("folder", "webdataset", "mds", "parquet")


@dataclass(frozen=True, slots=True)
class Exported:
    """Outcome of an export: records written, size of their JPEGs, damaged records left out, messages for the user."""

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
    """Write every record of a data set, in stored order. Damaged ones are left out and counted.

    The files are written to ``out/.unfinished`` and moved to ``out`` when all are complete and durable. An error in
    writing removes them. That folder stays as long as files are missing, also if the process is killed.

    Args:
        source: a finished data set, or an open one.
        out: a folder that does not exist or is empty.
        format: one of FORMATS.
        shard_size: approximate bytes of a tar, shard or Parquet file.
        workers: number of processes, or an engine; the files do not depend on it.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion, Damage: the data set cannot be opened.
        UsageError: ``out`` holds something, or the format cannot take the data set.
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
    if unfinished.exists():
        raise UsageError(f"{out} holds an export that goes on or was interrupted; if none goes on, remove {out}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; choose another destination")
    make_folder(unfinished)
    try:
        opened = _open_format(format, unfinished.absolute(), dataset, shard_size)
        done = _write_records(dataset, opened, worker_processes.as_engine(workers), progress)
        remove_partial_files(unfinished)
        _sync_tree(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _move_content(unfinished, out)
    return done


def _open_format(format: str, out: Path, dataset: Dataset, shard_size: int) -> ExportFormat:
    classes, attachments = dataset.classes, dataset.manifest.attachments
    if format == "folder":
        return FolderFormat(out, classes, attachments)
    if format == "webdataset":
        return WebDatasetFormat(out, classes, shard_size, attachments)
    if format == "mds":
        return MdsFormat(out, classes, shard_size, attachments)
    if format == "parquet":
        return ParquetFormat(out, classes, shard_size, attachments)
    raise UsageError(f"format {format!r}; there are {', '.join(FORMATS)}")


def _write_records(
    dataset: Dataset, format: ExportFormat, engine: worker_processes.Engine, progress: Progress | None
) -> Exported:
    format.begin()
    on_progress = progress_callback(progress)
    begin_stage(progress, "reading indexes", len(dataset))
    outlines = _read_outlines(dataset, format, engine, on_progress)
    tasks = list(_write_tasks(dataset, format, outlines))
    begin_stage(progress, "writing", len(dataset))
    done = worker_processes.run_all(write_parts, tasks, workers=engine, on_progress=on_progress)
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
    done = worker_processes.run_all(outline_containers, tasks, workers=engine, on_progress=on_progress)
    return join_outlines([outlines for _, outlines in sorted(done, key=lambda each: each[0].containers)])


def _write_tasks(dataset: Dataset, format: ExportFormat, outlines: Outlines) -> Iterator[WriteTask]:
    """Divide the records into parts, and join small parts to tasks."""
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
    """Make the folders durable, and the files that no task wrote, which are few and lie at the top."""
    for path in (folder, *folder.iterdir()):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                sync(file.fileno())


def _move_content(unfinished: Path, out: Path) -> None:
    """Move a folder's content to ``out``; the folder stays until all is there, also after an error."""
    for path in sorted(unfinished.iterdir()):
        path.rename(out / path.name)
    sync_folder(out)
    unfinished.rmdir()
    sync_folder(out)
