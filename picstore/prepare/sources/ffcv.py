"""FFCV's .beton, version 2, as a source.

A file holds a header, descriptions of the fields, a row of metadata per sample, pages of data, and at its end the table
of all allocations (sample, offset, size).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Table
from picstore.errors import Corrupt, NotADataset, UsageError
from picstore.prepare.sources.compressed_and_raw import read_rgb
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.labels import LabelFields, take_label
from picstore.prepare.sources.lenient_json import json_value
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import end_at_damage, or_damaged
from picstore.prepare.sources.metadata import SkippedFields
from picstore.prepare.sources.samples import SourceSample, choose_image
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location

_VERSION = 2
# Header of a .beton file: version, number of fields, page size, number of samples, offset of the allocation table.
_HEADER = struct.Struct("<HHIQQ")
_FIELD = np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "V1024")])
_ALLOCATION = np.dtype([("sample", "<u8"), ("offset", "<u8"), ("size", "<u8")])
_MAX_FIELDS = 256
_ROWS_PER_READ = 1 << 14

_FLOAT, _INTEGER, _IMAGE, _BYTES, _ARRAY, _JSON, _TENSOR = range(7)
_RANGE = np.dtype([("offset", "<u8"), ("size", "<u8")])
_METADATA: dict[int, npt.DTypeLike] = {
    _FLOAT: "<f8",
    _INTEGER: "<i8",
    _IMAGE: np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("offset", "<u8")]),
    _BYTES: _RANGE,
    _ARRAY: "<u8",
    _JSON: _RANGE,
    _TENSOR: "<u8",
}
_JPEG, _RAW = 0, 1
_NAMES = {_FLOAT: "float", _INTEGER: "integer", _IMAGE: "image", _BYTES: "bytes", _ARRAY: "array", _JSON: "JSON"}


def list_ffcv(location: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """List every sample of an FFCV file in order. JPEGs are read unchanged; raw pixels are read as PPM.

    Fields of integers, floats and JSON, except the label, become the extra. Fields of arrays and bytes are left out.
    """
    if not location.is_file():
        raise NotADataset(f"{location} is not a file")
    with SourceFile(location) as file:
        version, count, _, samples, table_offset = _HEADER.unpack(file.read(0, _HEADER.size))
        if version != _VERSION or not 0 < count <= _MAX_FIELDS:
            raise UsageError(f"{location} is not a .beton of version {_VERSION}; write it with FFCV 1")
        found = np.frombuffer(file.read(_HEADER.size, count * _FIELD.itemsize), _FIELD)
        fields = {entry["name"].decode("ascii", "backslashreplace"): int(entry["type"]) for entry in found}
        if len(fields) != count or not _METADATA.keys() >= set(fields.values()):
            raise UsageError(f"{location} has fields of types that are not FFCV's own: {fields}")
        images = [name for name, type_ in fields.items() if type_ == _IMAGE]
        image = choose_image(image_field, images, location)
        labels = LabelFields(label_field, location)
        label = labels.choose(fields, only=[name for name, type_ in fields.items() if type_ == _INTEGER])
        skipped = SkippedFields()
        start = _HEADER.size + count * _FIELD.itemsize
        found_samples = _samples(file, fields, (start, samples, table_offset), (image, label), skipped)
        found_samples = end_at_damage(found_samples, location, count=samples, version=file.version)
        return ListingBuilder(found_samples).build("ffcv", where=location, remarks=skipped.remarks(), labels=labels)


def _samples(
    file: SourceFile,
    fields: dict[str, int],
    layout: tuple[int, int, int],
    names: tuple[str, str | None],
    skipped: SkippedFields,
) -> Iterator[SourceSample]:
    start, samples, table_offset = layout
    # Like FFCV, align the fields of a row of metadata (align=True), but not the parts inside a field.
    row = np.dtype([(name, _METADATA[type_]) for name, type_ in fields.items()], align=True)
    allocations = np.frombuffer(
        file.read(table_offset, (file.size - table_offset) // _ALLOCATION.itemsize * _ALLOCATION.itemsize), _ALLOCATION
    )
    allocations = np.sort(allocations, order="offset")
    # Number of bytes that the remaining JSON fields may take. In an honest file each field has bytes of its own, so all
    # fields together are smaller than the file.
    json_bytes = file.size
    json_fields = [name for name, type_ in fields.items() if type_ == _JSON]
    for first in range(0, samples, _ROWS_PER_READ):
        count = min(_ROWS_PER_READ, samples - first)
        rows = np.frombuffer(file.read(start + first * row.itemsize, count * row.itemsize), row)
        sizes = _sizes(allocations, rows[names[0]])
        for number, (values, size) in enumerate(zip(rows, sizes.tolist(), strict=True), start=first):
            json_bytes -= sum(int(values[name]["size"]) for name in json_fields)
            if json_bytes < 0:
                raise Corrupt("JSON fields that are larger than the file, as samples share them", file.printable_path)
            name = printable(f"{file.name}/{number}")
            yield or_damaged(_sample, name, file.path, file, name, values, size, fields, names, skipped)


def _sizes(allocations: Table, images: Table) -> I64:
    """Return each image's size in bytes, looked up by its offset in the allocation table; −1 if the table lacks it."""
    sizes = np.full(len(images), -1, np.int64)
    if len(allocations):
        nearest = np.minimum(np.searchsorted(allocations["offset"], images["offset"]), len(allocations) - 1)
        found = allocations["offset"][nearest] == images["offset"]
        sizes[found] = allocations["size"][nearest][found].astype(np.int64)
    return sizes


def _sample(
    file: SourceFile,
    sample_name: str,
    values: Any,
    size: int,
    fields: dict[str, int],
    names: tuple[str, str | None],
    skipped: SkippedFields,
) -> SourceSample:
    image, label = values[names[0]], names[1]
    sample = SourceSample(sample_name, file.path, int(image["offset"]), size)
    if not 0 <= size <= file.size or image["mode"] not in (_JPEG, _RAW):
        sample.problem = "damaged: its offset is not in the table of allocations"
    if image["mode"] == _RAW:
        sample.reader, sample.key = read_rgb, struct.pack("<II", image["width"], image["height"])
    for name, type_ in fields.items():
        if type_ in (_FLOAT, _INTEGER):
            sample.extra[name] = values[name].item()
        elif type_ == _JSON:
            offset, size = int(values[name]["offset"]), int(values[name]["size"])
            try:
                sample.extra[name] = _read_json(file, offset, size, skipped)
            except ValueError as error:
                what = f"field {printable(name)} (not JSON that a record can hold)"
                if name == label:
                    raise Corrupt(what, file.printable_path, offset) from error
                skipped[what] += 1
        elif name != names[0]:
            skipped[f"field {printable(name)} of type {_NAMES.get(type_, 'array')}"] += 1
    sample.label = take_label(sample.extra, label)
    return sample


def _read_json(file: SourceFile, offset: int, size: int, skipped: SkippedFields) -> Any:
    """Parse a JSON field, which ends with a zero byte; raise ValueError if it is damaged or too large for a record."""
    if size > MAX_EXTRA:
        raise ValueError(f"{size:,} bytes")
    return json_value(file.read(offset, size).partition(b"\0")[0], skipped)


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a .beton file whose header states version 2."""
    head = probe.head()[: _HEADER.size] if probe.location.name.endswith(".beton") else b""
    return len(head) == _HEADER.size and _HEADER.unpack(head)[0] == _VERSION


FORMAT = SourceFormat(list_ffcv, options=("image_field", "label_field"), recognizes=recognizes, object_stores=True)
