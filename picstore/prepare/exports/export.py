"""Export a data set: its JPEGs, labels, extras and attachments, unchanged, in formats that other libraries read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.exports.base import MAX_SHARD_SIZE, ExportWriter, extra_object, to_json
from picstore.prepare.exports.folder import FolderWriter
from picstore.prepare.exports.mds import MdsWriter
from picstore.prepare.exports.parquet import ParquetWriter
from picstore.prepare.exports.webdataset import WebDatasetWriter
from picstore.prepare.progress import Progress, begin_stage
from picstore.storage.dataset import Dataset
from picstore.storage.format.record import Record, extra_to_json
from picstore.storage.location.atomic_file import make_folder, sync, sync_folder

_UNFINISHED = ".unfinished"  # no folder of a class has such a name
FORMATS = ("folder", "webdataset", "mds", "parquet")


@dataclass(frozen=True, slots=True)
class Exported:
    """Outcome of an export: records written, size of their JPEGs, damaged records left out, messages for the user."""

    images: int
    bytes: int
    lost: int
    remarks: list[str]


def export(
    source: Path | Dataset, out: Path, *, format: str, shard_size: int = 256 << 20, progress: Progress | None = None
) -> Exported:
    """Write every record of a data set, in stored order. Damaged ones are left out and counted.

    The files are written to ``out/.unfinished`` and moved to ``out`` when all are complete and durable. An error in
    writing removes them. That folder stays as long as files are missing, also if the process is killed.

    Args:
        source: a finished data set, or an open one.
        out: a folder that does not exist or is empty.
        format: one of FORMATS.
        shard_size: approximate bytes of a tar, shard or Parquet file.

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
    if out.resolve().is_relative_to(Path(str(dataset.path)).resolve()):
        raise UsageError(f"{out} lies in the data set {dataset.path}; choose another destination")
    make_folder(unfinished)
    try:
        done = _write_records(dataset, _make_writer(format, unfinished, dataset, shard_size), progress)
        _sync_tree(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _move_content(unfinished, out)
    return done


def _write_records(dataset: Dataset, writer: ExportWriter, progress: Progress | None) -> Exported:
    begin_stage(progress, "writing", len(dataset))
    images = size = 0
    remarks: list[str] = []
    for record in _records(dataset, remarks):
        writer.add(record)
        images += 1
        size += len(record.jpeg)
        if progress is not None:
            progress.advance(1)
    return Exported(images, size, len(dataset) - images, [*remarks, *writer.close()])


def _sync_tree(folder: Path) -> None:
    """Make everything below a folder durable."""
    for path in (folder, *folder.rglob("*")):
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


def _make_writer(format: str, out: Path, dataset: Dataset, shard_size: int) -> ExportWriter:
    if format == "folder":
        return FolderWriter(out, dataset.classes, dataset.manifest.attachments)
    if format == "webdataset":
        return WebDatasetWriter(out, dataset.classes, shard_size, dataset.manifest.attachments)
    if format == "mds":
        return MdsWriter(out, dataset.classes, shard_size, dataset.manifest.attachments)
    if format == "parquet":
        return ParquetWriter(out, dataset.classes, shard_size, dataset.manifest.attachments)
    raise UsageError(f"format {format!r}; there are {', '.join(FORMATS)}")


def _with_columns(record: Record) -> Record:
    """Move a record's column values into its extra, which must be an object or none; its own members win."""
    extra = record.extra if record.columns else None
    if not record.columns or not isinstance(extra, (dict, type(None))):
        return record
    columns = record.columns.items()
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns}
    return replace(record, extra_json=extra_to_json({**values, **(extra or {})}))


def _records(dataset: Dataset, remarks: list[str]) -> Iterator[Record]:
    """Yield all readable records in stored order; one remark counts extras that are not JSON."""
    malformed = 0
    for number in np.flatnonzero(dataset.live.counts).tolist():
        try:
            container = dataset.containers.read(number)
        except (Damage, NotADataset):  # NotADataset for a missing file
            continue
        for k in np.flatnonzero(dataset.live.mask(number)).tolist():
            try:
                record = container.record(k)
            except Damage:
                continue
            record = dataset.with_values(record)
            try:
                record = _with_columns(record)
                to_json(extra_object(record))
            # The last three for an extra that is too deep to be written again.
            except (Damage, UsageError, ValueError, RecursionError):
                malformed += 1
                continue
            yield record
    if malformed:
        remarks.append(f"{malformed:,} records were left out, as their extras are not JSON")
