"""Tasks of an export: reading indexes (``outline_containers``), then writing (``write_parts``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.exports.export_format import ExportFormat, Outline, Part, extra_object, to_json
from picstore.prepare.progress import ProgressCallback
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container
from picstore.storage.format.record import Record, extra_to_json
from picstore.storage.location.resolve import map_concurrently


@dataclass(frozen=True, slots=True)
class OutlineTask:
    """Task to read the indexes of some containers, by their numbers."""

    dataset: Dataset
    containers: tuple[int, ...]
    format: ExportFormat


@dataclass(frozen=True, slots=True)
class Outlines:
    """Records that can be exported, in stored order, as the indexes describe them.

    Attributes:
        containers, positions, sizes: int64 (n,), where the records lie, and the bytes of their JPEGs.
        described: by the format.
        malformed: number of records whose extras are not JSON.
    """

    containers: I64
    positions: I64
    sizes: I64
    described: list[Any]
    malformed: int


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Task to write parts that follow each other.

    ``containers`` and ``positions``, int64 (n,), tell where their records lie.
    """

    dataset: Dataset
    containers: I64
    positions: I64
    format: ExportFormat
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class WrittenParts:
    """Records that a task wrote, the size of their JPEGs, and what the format returned for each part."""

    images: int
    bytes: int
    results: list[Any]


def join_outlines(parts: Sequence[Outlines]) -> Outlines:
    """Join the outlines of containers that follow each other."""

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
    """Describe the records of some containers from their indexes."""

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
    except (Damage, NotADataset):  # NotADataset for a missing file
        return join_outlines([])
    for k in np.flatnonzero(dataset.live.mask(number) & container.good).tolist():
        try:
            record = _record_without_image(container, k)
        except Damage:
            continue
        try:
            outline = _outline(container, k, _with_columns(dataset.with_values(record)))
        # The last three for an extra that is too deep to be written again.
        except (Damage, UsageError, ValueError, RecursionError):
            malformed += 1
            continue
        positions.append(k)
        described.append(format.describe(outline))
    where = np.array(positions, np.int64)
    sizes = container.index["length"][where].astype(np.int64)
    return Outlines(np.full(len(where), number, np.int64), where, sizes, described, malformed)


def _record_without_image(container: Container, k: int) -> Record:
    """Make a record of what the index holds of it; Corrupt if the extras are damaged."""
    entry = container.index[k]
    return Record(int(entry["id"]), int(entry["label"]), b"", container.info(k), container.extra_json(k))


def _outline(container: Container, k: int, record: Record) -> Outline:
    extra = extra_object(record)
    to_json(extra)
    lengths = container.attached[k]["length"].tolist()
    attachments = {name: length for name, length in zip(container.fields, lengths, strict=True) if length}
    return Outline(record.id, record.label, extra, int(container.index["length"][k]), attachments)


def write_parts(task: WriteTask, on_progress: ProgressCallback) -> WrittenParts:
    """Write parts; containers are read once each, one after the other."""
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
    """Read the records of a task; None for one that is damaged."""
    places = zip(task.containers.tolist(), task.positions.tolist(), strict=True)
    for number, of_container in groupby(places, key=lambda place: place[0]):
        container = _read_container(task.dataset, number)
        for _, k in of_container:
            yield None if container is None else _read_record(task.dataset, container, k)


def _read_container(dataset: Dataset, number: int) -> Container | None:
    try:
        return dataset.containers.read(number)
    except (Damage, NotADataset):
        return None


def _read_record(dataset: Dataset, container: Container, k: int) -> Record | None:
    try:
        return _with_columns(dataset.with_values(container.record(k)))
    except Damage:
        return None


def _with_columns(record: Record) -> Record:
    """Move a record's column values into its extra, which must be an object or none; its own members win."""
    extra = record.extra if record.columns else None
    if not record.columns or not isinstance(extra, (dict, type(None))):
        return record
    columns = record.columns.items()
    values = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in columns}
    return replace(record, extra_json=extra_to_json({**values, **(extra or {})}))
