"""Details of one image: tiles, annotations, and where its bytes lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from picstore.errors import ImageError
from picstore.storage.annotations import Objects, parse_extra, read_objects
from picstore.storage.dataset import Dataset
from picstore.storage.format.layout import MCU_SIZES, SAMPLINGS
from picstore.storage.format.record import Record
from picstore.viewer.grid import column_values

_MAX_EXTRA = 100_000  # characters of an extra that are shown
_MAX_DRAWN = 2000  # objects that are drawn, and points of their outlines


@dataclass(frozen=True, slots=True)
class Tiles:
    """Restart tiles: width and height in pixels, columns and rows, and the bytes of each, row by row."""

    width: int
    height: int
    columns: int
    rows: int
    bytes: list[int]


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of a file or container."""

    name: str
    offset: int
    size: int
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies.

    Attributes:
        file, offset, size: of its image.
        container, record: numbers of its container in stored order and of the record in it.
        containers: all of its file, its own marked as chosen.
        records: images of its container by offset in it, its own marked as chosen.
        crc: CRC-32C of the image.
    """

    file: str
    offset: int
    size: int
    container: int
    record: int
    containers: list[Span]
    records: list[Span]
    crc: str


@dataclass(frozen=True, slots=True)
class Details:
    """All that is shown of one image beside its pixels; ``problem`` tells why objects are not drawn."""

    position: int
    id: str
    label: int
    width: int
    height: int
    sampling: str
    foreign: bool
    header_bytes: int
    tiles: Tiles | None
    place: Place
    extra: str
    columns: dict[str, Any]
    attachments: dict[str, int]
    objects: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_details(dataset: Dataset, position: int) -> Details:
    """Read the details of a record; errors: see ``dataset[position]``."""
    record = dataset[position]
    info = record.info
    objects, problem = Objects(), ""
    try:
        objects = read_objects(parse_extra(record.extra_json))
    except ImageError as error:
        problem = f"its extra {error}"
    return Details(
        position=position,
        id=str(record.id),
        label=record.label,
        width=info.width,
        height=info.height,
        sampling=info.sampling,
        foreign=info.foreign,
        header_bytes=info.header_length,
        tiles=tiles_of(record),
        place=find_place(dataset, position),
        extra=record.extra_json[:_MAX_EXTRA].decode("utf-8", "replace"),
        columns=column_values(dataset, record.id, _MAX_EXTRA),
        attachments={name: len(blob) for name, blob in record.attachments.items()},
        objects=drawn_objects(objects),
        problem=problem,
    )


def tiles_of(record: Record) -> Tiles | None:
    """The grid of restart tiles; None where the markers form none."""
    info = record.info
    mcu_width, mcu_height = MCU_SIZES[SAMPLINGS.index(info.sampling)]
    if not info.restart_interval or not mcu_width or not len(info.segments):
        return None
    mcus, rows = -(-info.width // mcu_width), -(-info.height // mcu_height)
    columns, rest = divmod(mcus, info.restart_interval)
    if rest or columns * rows != len(info.segments):
        return None
    return Tiles(info.restart_interval * mcu_width, mcu_height, columns, rows, info.segments.tolist())


def find_place(dataset: Dataset, position: int) -> Place:
    """Find where a record lies, by the indexes alone."""
    (number,), (k,) = (each.tolist() for each in dataset.live.find(np.array([position])))
    container = dataset.containers.index(number)
    entry, rows = container.index[k], dataset.rows
    file, offset = container.locate(int(entry["offset"]))
    same = np.flatnonzero((rows["stream"] == rows["stream"][number]) & (rows["file"] == rows["file"][number]))
    containers = [
        Span(f"container {other}", int(rows["offset"][other]), int(rows["size"][other]), other == number)
        for other in same[np.argsort(rows["offset"][same])].tolist()
    ]
    offsets, lengths, ids = (container.index[name].tolist() for name in ("offset", "length", "id"))
    records = [Span(str(ids[j]), offsets[j], lengths[j], j == k) for j in np.flatnonzero(container.good).tolist()]
    records.sort(key=lambda span: span.offset)
    return Place(file, offset, int(entry["length"]), number, k, containers, records, f"{int(entry['crc']):08x}")


def drawn_objects(objects: Objects) -> dict[str, Any]:
    """Boxes, labels, outlines and keypoints as lists; the first 2,000 objects."""
    drawn: dict[str, Any] = {"count": objects.count}
    for name in ("boxes", "labels"):
        values = getattr(objects, name)
        if values is not None:
            drawn[name] = values[:_MAX_DRAWN].tolist()
    if objects.polygons is not None:
        drawn["polygons"] = [[outline.tolist() for outline in each] for each in objects.polygons[:_MAX_DRAWN]]
    if objects.keypoints is not None:
        drawn["keypoints"] = [points.tolist() for points in objects.keypoints[:_MAX_DRAWN]]
    return drawn
