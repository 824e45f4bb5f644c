"""Export a data set: its JPEGs, labels, extras and attachments, unchanged, in formats that other libraries read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.exports.base import MAX_SHARD_SIZE, ExportWriter
from picstore.prepare.exports.folder import FolderWriter
from picstore.prepare.exports.mds import MdsWriter
from picstore.prepare.exports.webdataset import WebDatasetWriter
from picstore.prepare.progress import Progress
from picstore.storage.dataset import Dataset
from picstore.storage.format.record import Record, extra_to_json

FORMATS = ("folder", "webdataset", "mds")


@dataclass(frozen=True, slots=True)
class Exported:
    """Outcome of an export: records written, size of their JPEGs, damaged records left out, messages for the user."""

    images: int
    bytes: int
    lost: int
    remarks: list[str]


def export(
    source: Path, out: Path, *, format: str, shard_size: int = 256 << 20, progress: Progress | None = None
) -> Exported:
    """Write every record of a data set, in stored order. Damaged ones are left out and counted.

    Args:
        out: a folder that does not exist or is empty.
        format: one of FORMATS.
        shard_size: approximate bytes of a tar or shard.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion, Damage: the data set cannot be opened.
        UsageError: ``out`` holds something, or the format cannot take the data set.
        OSError: a file cannot be written.
    """
    dataset = Dataset(source)
    if not 1 <= shard_size <= MAX_SHARD_SIZE:
        raise UsageError(f"shards of {shard_size:,} bytes; 1 to {MAX_SHARD_SIZE:,} are possible")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; choose another destination")
    if out.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{out} lies in the data set {source}; choose another destination")
    out.mkdir(parents=True, exist_ok=True)
    writer = _make_writer(format, out, dataset, shard_size)
    if progress is not None:
        progress.set_total(len(dataset), 0)
    images = size = 0
    for record in _records(dataset):
        writer.add(record)
        images += 1
        size += len(record.jpeg)
        if progress is not None:
            progress.advance(1)
    return Exported(images, size, len(dataset) - images, writer.close())


def _make_writer(format: str, out: Path, dataset: Dataset, shard_size: int) -> ExportWriter:
    if format == "folder":
        return FolderWriter(out, dataset.classes)
    if format == "webdataset":
        return WebDatasetWriter(out, dataset.classes, shard_size)
    if format == "mds":
        return MdsWriter(out, dataset.classes, shard_size, dataset.manifest.attachments)
    raise UsageError(f"format {format!r}; there are {', '.join(FORMATS)}")


def _with_columns(record: Record) -> Record:
    """Move a record's column values into its extra, which must be an object or none; its own members win."""
    extra = record.extra if record.columns else None
    if not record.columns or not isinstance(extra, (dict, type(None))):
        return record
    columns = record.columns.items()
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns}
    return replace(record, extra_json=extra_to_json({**values, **(extra or {})}))


def _records(dataset: Dataset) -> Iterator[Record]:
    """All readable records, in stored order."""
    for number in np.flatnonzero(dataset.live.counts).tolist():
        try:
            container = dataset.container(number)
        except (Damage, NotADataset):  # NotADataset for a missing file
            continue
        for k in np.flatnonzero(dataset.live.mask(number)).tolist():
            try:
                record = container.record(k)
            except Damage:
                continue
            yield _with_columns(dataset.with_values(record))
