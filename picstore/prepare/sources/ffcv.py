"""FFCV's .beton, version 2: header, descriptions of the fields, a row of metadata a sample, pages of data, and at the
end the table of all pieces of data (sample, place, size)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Table
from picstore.errors import Corrupt, NotADataset, UsageError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Listing, SourceFile, printable
from picstore.prepare.sources.raw_pixels import read_rgb
from picstore.prepare.sources.samples import (
    IMAGE_FIELDS,
    LABEL_FIELDS,
    LeftOut,
    Sample,
    choose,
    json_object,
    listing_of,
    take_label,
    until_damaged,
)
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location

_VERSION = 2
_HEADER = struct.Struct("<HHIQQ")  # version, fields, page size, samples, place of the table at the end
_FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "V1024")])
_PIECE = np.dtype([("sample", "<u8"), ("place", "<u8"), ("size", "<u8")])
_MAX_FIELDS = 256
_AT_A_TIME = 1 << 14  # rows of metadata in memory

_FLOAT, _INTEGER, _IMAGE, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_STRETCH = np.dtype([("place", "<u8"), ("size", "<u8")])
_METADATA: dict[int, npt.DTypeLike] = {
    _FLOAT: "<f8",
    _INTEGER: "<i8",
    _IMAGE: np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")]),
    _BYTES: _STRETCH,
    _ARRAY: "<u8",
    _JSON: _STRETCH,
    _TENSOR: "<u8",
}
_JPEG, _RAW = 0, 1
_NAMES = {_FLOAT: "float", _INTEGER: "integer", _IMAGE: "image", _BYTES: "bytes", _ARRAY: "array", _JSON: "JSON"}


def list_ffcv(place: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """Every sample in order. JPEGs are read where they stand, raw pixels as PPM.

    Integers, floats and JSON become the extra, or the label; arrays and bytes are left out.

    Raises:
        NotADataset, UsageError: there is no such file, or fields that FFCV did not define.
        Damage: its header or tables are damaged.
    """
    if not place.is_file():
        raise NotADataset(f"{place} is no file")
    with SourceFile(place) as file:
        version, count, _, samples, table_at = _HEADER.unpack(file.read(0, _HEADER.size))
        if version != _VERSION or not 0 < count <= _MAX_FIELDS:
            raise UsageError(f"{place} is no .beton of version {_VERSION}")
        found = np.frombuffer(file.read(_HEADER.size, count * _FIELD.itemsize), _FIELD)
        fields = {entry["name"].decode("ascii", "backslashreplace"): int(entry["type"]) for entry in found}
        if len(fields) != count or not _METADATA.keys() >= set(fields.values()):
            raise UsageError(f"{place} has fields of types that are not FFCV's own: {fields}")
        images = [name for name, type_ in fields.items() if type_ == _IMAGE]
        image = str(choose(image_field, images, IMAGE_FIELDS, what="image", path=place))
        label = choose(label_field, fields, LABEL_FIELDS, what="label", path=place, must=False)
        integers = [name for name, type_ in fields.items() if type_ == _INTEGER]
        if label is None and len(integers) == 1:
            label = integers[0]
        left_out = LeftOut()
        start = _HEADER.size + count * _FIELD.itemsize
        walk = _samples(file, fields, (start, samples, table_at), (image, label), left_out)
        return listing_of("ffcv", until_damaged(walk, place), remarks=left_out.remarks())


def _samples(
    file: SourceFile,
    fields: dict[str, int],
    layout: tuple[int, int, int],
    names: tuple[str, str | None],
    left_out: LeftOut,
) -> Iterator[Sample]:
    start, samples, table_at = layout
    # FFCV aligns the rows of this very description; its parts are packed, so there is no padding.
    row = np.dtype([(name, _METADATA[type_]) for name, type_ in fields.items()], align=True)
    pieces = np.frombuffer(file.read(table_at, (file.size - table_at) // _PIECE.itemsize * _PIECE.itemsize), _PIECE)
    pieces = np.sort(pieces, order="place")
    for first in range(0, samples, _AT_A_TIME):
        count = min(_AT_A_TIME, samples - first)
        rows = np.frombuffer(file.read(start + first * row.itemsize, count * row.itemsize), row)
        sizes = _sizes(pieces, rows[names[0]])
        for number, (values, size) in enumerate(zip(rows, sizes.tolist(), strict=True), start=first):
            yield _sample(file, number, values, size, fields, names, left_out)


def _sizes(pieces: Table, images: Table) -> I64:
    """Bytes of images: of the piece that begins where each does, −1 where none does; raw ones by their sides."""
    sizes = np.full(len(images), -1, np.int64)
    if len(pieces):
        at = np.minimum(np.searchsorted(pieces["place"], images["place"]), len(pieces) - 1)
        there = pieces["place"][at] == images["place"]
        sizes[there] = pieces["size"][at][there].astype(np.int64)
    return sizes


def _sample(
    file: SourceFile,
    number: int,
    values: Any,
    size: int,
    fields: dict[str, int],
    names: tuple[str, str | None],
    left_out: LeftOut,
) -> Sample:
    image, label = values[names[0]], names[1]
    sample = Sample(printable(f"{file.name}/{number}"), file.path, int(image["place"]), size)
    if not 0 <= size <= file.size or image["mode"] not in (_JPEG, _RAW):
        sample.problem = "damaged: its place is not in the table of pieces"
    if image["mode"] == _RAW:
        sample.reader, sample.key = read_rgb, struct.pack("<II", image["width"], image["height"])
    for name, type_ in fields.items():
        if type_ in (_FLOAT, _INTEGER):
            sample.extra[name] = values[name].item()
        elif type_ == _JSON:
            sample.extra[name] = _json(file, int(values[name]["place"]), int(values[name]["size"]))
        elif name != names[0]:
            left_out[f"field {printable(name)} of type {_NAMES.get(type_, 'array')}"] += 1
    sample.label = take_label(sample.extra, label)
    return sample


def _json(file: SourceFile, place: int, size: int) -> Any:
    if size > MAX_EXTRA:
        raise Corrupt(f"a JSON field of {size:,} bytes", file.place, place)
    value = json_object(b'{"value":%s}' % file.read(place, size).partition(b"\0")[0])
    if value is None:
        raise Corrupt("a JSON field that is no JSON", file.place, place)
    return value["value"]


def looks_like(glance: SourceProbe) -> bool:
    """A file .beton whose header has the version."""
    head = glance.head()[: _HEADER.size] if glance.place.name.endswith(".beton") else b""
    return len(head) == _HEADER.size and _HEADER.unpack(head)[0] == _VERSION


SOURCE = Source(list_ffcv, options=("image_field", "label_field"), guess=looks_like, stores=True)
