"""Answers to requests of the page about the whole dataset, and about one image: tiles, annotations, bytes, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from picstore.errors import ImageError, UsageError
from picstore.kernels.ahead import is_compiling
from picstore.storage.annotations import Objects, parse_extra, read_objects
from picstore.storage.dataset import Dataset
from picstore.storage.format.layout import MCU_SIZES, SAMPLINGS
from picstore.storage.format.record import Record
from picstore.viewer import images
from picstore.viewer.grid import column_values
from picstore.viewer.images import Picture
from picstore.viewer.queries import Query
from picstore.viewer.session import Session

_MAX_THUMBNAIL = 2048  # Largest number of pixels on the longer side of a thumbnail.
_MAX_EXTRA = 100_000  # Largest number of characters to show of a record's extra.
_MAX_DRAWN = 2000


def answer_dataset(session: Session, _: Query) -> dict[str, Any]:
    """Return facts about the dataset, most of them from its manifest."""
    dataset = session.dataset
    manifest = dataset.manifest
    edits = () if manifest.edits is None else manifest.edits.columns
    outcome = manifest.provenance.get("outcome")
    return {
        "path": str(dataset.path),
        "uuid": dataset.uuid,
        "images": len(dataset),
        # Number of all stored records, including deleted records and records outside of the selection.
        "stored": manifest.images,
        "deleted": len(dataset.live.deleted),
        "bytes": manifest.bytes,
        "streams": manifest.streams,
        "files": len(manifest.files),
        "containers": manifest.containers,
        "classes": dataset.classes,
        "columns": list(dataset.columns),
        "numbers": ["width", "height", "bytes", *(entry.name for entry in edits if entry.kind == "numbers")],
        "attachments": list(manifest.attachments),
        "encode": manifest.encode,
        # Number of inputs by status, from the conversion that made the dataset.
        "outcome": outcome if isinstance(outcome, dict) else {},
        "shuffled": bool(manifest.shuffle),
        "references": "" if manifest.references is None else manifest.references.root,
        "beside": "" if session.other is None else str(session.other.dataset.path),
        "sql": find_spec("duckdb") is not None and find_spec("pyarrow") is not None,
    }


def answer_image(session: Session, query: Query) -> dict[str, Any]:
    """Return all facts about an image except its pixels; ``problem`` is the reason why its objects cannot be drawn."""
    dataset, position = session.dataset, session.position(query)
    record = dataset[position]
    info = record.info
    objects, problem = Objects(), ""
    try:
        objects = read_objects(parse_extra(record.extra_json))
    except ImageError as error:
        problem = f"its extra {error}"
    return {
        "position": position,
        "id": str(record.id),
        "label": record.label,
        "width": info.width,
        "height": info.height,
        "sampling": info.sampling,
        "foreign": info.foreign,
        "header_bytes": info.header_length,
        "tiles": tiles_of(record),
        "place": find_place(dataset, position),
        "extra": record.extra_json[:_MAX_EXTRA].decode("utf-8", "replace"),
        "columns": column_values(dataset, record.id, _MAX_EXTRA),
        "attachments": {name: len(blob) for name, blob in record.attachments.items()},
        "objects": drawn_objects(objects),
        "problem": problem,
    }


def tiles_of(record: Record) -> dict[str, Any] | None:
    """Return the grid of a JPEG's restart tiles in pixels, and each tile's bytes, row by row; None without a grid."""
    info = record.info
    mcu_width, mcu_height = MCU_SIZES[SAMPLINGS.index(info.sampling)]
    if not info.restart_interval or not mcu_width or not len(info.segments):
        return None
    mcus, rows = -(-info.width // mcu_width), -(-info.height // mcu_height)
    columns, rest = divmod(mcus, info.restart_interval)
    if rest or columns * rows != len(info.segments):
        return None
    width = info.restart_interval * mcu_width
    sizes = info.segments.tolist()
    return {"width": width, "height": mcu_height, "columns": columns, "rows": rows, "bytes": sizes}


def find_place(dataset: Dataset, position: int) -> dict[str, Any]:
    """Return where a record is stored, without reading its image.

    Returns:
        File, offset, size and CRC-32C of the image; index of the container in the dataset, and of the record in the
        container; lists of the file's containers and of the container's images. Both lists are sorted by offset;
        ``chosen`` is true for the record's container and image.
    """
    (number,), (k,) = (each.tolist() for each in dataset.live.find(np.array([position])))
    container = dataset.containers.index(number)
    entry, rows = container.index[k], dataset.rows
    file, offset = container.locate(int(entry["offset"]))
    same = np.flatnonzero((rows["stream"] == rows["stream"][number]) & (rows["file"] == rows["file"][number]))
    containers = [
        _byte_range(f"container {other}", int(rows["offset"][other]), int(rows["size"][other]), chosen=other == number)
        for other in same[np.argsort(rows["offset"][same])].tolist()
    ]
    offsets, lengths, ids = (container.index[name].tolist() for name in ("offset", "length", "id"))
    good = np.flatnonzero(container.good).tolist()
    records = [_byte_range(str(ids[j]), offsets[j], lengths[j], chosen=j == k) for j in good]
    return {
        "file": file,
        "offset": offset,
        "size": int(entry["length"]),
        "crc": f"{int(entry['crc']):08x}",
        "container": number,
        "record": k,
        "containers": containers,
        "records": sorted(records, key=lambda each: each["offset"]),
    }


def _byte_range(name: str, offset: int, size: int, *, chosen: bool) -> dict[str, Any]:
    return {"name": name, "offset": offset, "size": size, "chosen": chosen}


def drawn_objects(objects: Objects) -> dict[str, Any]:
    """Return the number of an image's objects; and boxes, labels, polygons and keypoints of its first 2,000 objects."""
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


def _open(session: Session, query: Query) -> tuple[Record, str]:
    """Return the record that a request names; and the name of its image file, or "" for an upright JPEG."""
    position = session.position(query)
    record = session.dataset[position]
    return record, find_place(session.dataset, position)["file"] if record.info.foreign else ""


def answer_thumbnail(session: Session, query: Query) -> Picture:
    """Return a picture of the requested image for a tile of the requested size, see :func:`images.thumbnail`."""
    size = query.integer("size", 256, least=16, most=_MAX_THUMBNAIL)
    return images.thumbnail(*_open(session, query), size)


def answer_attachment(session: Session, query: Query) -> Picture:
    """Return an attachment of the requested image as an image file that browsers can show."""
    record = session.dataset[session.position(query)]
    name = query.text("name")
    if name not in record.attachments:
        raise UsageError(f"the record has no attachment {name!r}; it has {list(record.attachments)}")
    return images.attachment(record, name)


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/dataset": answer_dataset,
    "/api/kernels": lambda _session, _query: {"compiling": is_compiling()},
    "/api/image": answer_image,
    "/api/cut": lambda session, query: images.measure_cut(session.dataset[session.position(query)], query.box()),
}
PICTURE_ANSWERS: Mapping[str, Callable[[Session, Query], Picture]] = {
    "/thumbnail": answer_thumbnail,
    "/picture": lambda session, query: images.whole(*_open(session, query)),
    "/crop": lambda session, query: images.crop(*_open(session, query), query.box()),
    "/attachment": answer_attachment,
}
