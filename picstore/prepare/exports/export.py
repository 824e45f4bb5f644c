"""Exporting a data set: its JPEGs, labels, extras and attachments, as they are, in formats that others read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.exports.folder import FolderSink
from picstore.prepare.exports.mds import MdsSink
from picstore.prepare.exports.sink import MAX_SHARD, Sink
from picstore.prepare.exports.webdataset import WebDatasetSink
from picstore.prepare.progress import Progress
from picstore.storage.dataset import Dataset
from picstore.storage.format.record import Record, extra_to_json

FORMATS = ("folder", "webdataset", "mds")
SHARD_SIZE = 256 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export.

    Attributes:
        bytes: of the JPEGs.
        lost: records that are damaged in the data set and therefore missing.
        remarks: what the user should hear.
    """

    images: int
    bytes: int
    lost: int
    remarks: list[str]


def export(
    source: Path, out: Path, *, format: str, shard_size: int = SHARD_SIZE, progress: Progress | None = None
) -> Exported:
    """Write every record of a data set, in stored order. Damaged ones are left out and counted.

    Args:
        out: a folder that does not exist or is empty.
        format: one of FORMATS.
        shard_size: bytes of a tar or shard, about.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion, Damage: the data set cannot be opened.
        UsageError: ``out`` holds something, or the format cannot take the data set.
    """
    dataset = Dataset(source)
    if not 1 <= shard_size <= MAX_SHARD:
        raise UsageError(f"shards of {shard_size:,} bytes; 1 to {MAX_SHARD:,} are possible")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} exists and is not an empty folder; choose another destination")
    if out.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{out} lies in the data set {source}; choose another destination")
    out.mkdir(parents=True, exist_ok=True)
    sink = _sink(format, out, dataset, shard_size)
    if progress is not None:
        progress.set_total(len(dataset), 0)
    images = size = 0
    for record in _records(dataset):
        sink.add(record)
        images += 1
        size += len(record.jpeg)
        if progress is not None:
            progress.advance(1)
    return Exported(images, size, len(dataset) - images, sink.close())


def _sink(format: str, out: Path, dataset: Dataset, shard_size: int) -> Sink:
    if format == "folder":
        return FolderSink(out, dataset.classes)
    if format == "webdataset":
        return WebDatasetSink(out, dataset.classes, shard_size)
    if format == "mds":
        return MdsSink(out, dataset.classes, shard_size, dataset.manifest.attachments)
    raise UsageError(f"format {format!r}; there are {', '.join(FORMATS)}")


def _whole(record: Record) -> Record:
    """A record whose columns stand in its extra, where that is an object and has nothing of their names."""
    extra = record.extra if record.columns else None
    if not record.columns or not isinstance(extra, (dict, type(None))):
        return record
    values = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in record.columns.items()
    }
    return replace(record, extra_json=extra_to_json({**values, **(extra or {})}))


def _records(dataset: Dataset) -> Iterator[Record]:
    """All records that can be read, in stored order."""
    for number in np.flatnonzero(dataset.live.counts).tolist():
        try:
            container = dataset.container(number)
        except (Damage, NotADataset):  # the latter where a file is missing
            continue
        for k in np.flatnonzero(dataset.live.mask(number)).tolist():
            try:
                record = container.record(k)
            except Damage:
                continue
            yield _whole(dataset.with_values(record))
