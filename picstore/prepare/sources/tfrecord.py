"""TFRecord files of tf.Example.

A record: length u64, masked CRC-32C of the length, the data, masked CRC-32C of the data. A tf.Example is a map from
names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from picstore.errors import Corrupt
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Listing, SourceFile, printable
from picstore.prepare.sources.protobuf import BYTES, FIXED32, VARINT, Field, fields_of, signed, varint
from picstore.prepare.sources.samples import (
    IMAGE_FIELDS,
    LABEL_FIELDS,
    LeftOut,
    Sample,
    choose,
    files_of,
    listing_of,
    take_label,
    until_damaged,
)
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.location.resolve import Location

_HEAD = struct.Struct("<QI")
_TAIL = 4  # bytes of the data's CRC
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # kinds of tf.Feature
_MAX_VALUE = 1 << 16  # bytes of a feature that goes into the extra
_IMAGES = ("image/encoded", "image_raw", "image/raw", *IMAGE_FIELDS)
_LABELS = ("image/class/label", "image/class/text", *LABEL_FIELDS)
_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecs")
_PACKED = (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda")  # gzip, zlib


def list_tfrecord(place: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """Every example of a file, of a folder's ``*.tfrecord`` (or ``name-00000-of-00128``), or of files named by braces.

    Integers, floats and texts become the extra, single ones as values, several as lists; other bytes are left out.
    The CRC of lengths is checked, that of the data is not: images are read where they stand.

    Raises:
        UsageError: it cannot be told which feature is the image.
    """
    files = _files(place)
    left_out = LeftOut()
    fields = (image_field, label_field)
    samples = (sample for file in files for sample in until_damaged(_samples(file, fields, left_out), file))
    return listing_of("tfrecord", samples, remarks=left_out.remarks())


def _files(place: Location) -> list[Location]:
    if place.is_folder() and (shards := _shards(SourceProbe.at(place))):
        return [place / name for name in shards]
    return files_of(place, *_SUFFIXES)


def _shards(glance: SourceProbe) -> list[str]:
    """Files that are named as TensorFlow's tools number them."""
    return [name for name in glance.files if "-of-" in name and ".parquet" not in name]


def _samples(place: Location, fields: tuple[str | None, str | None], left_out: LeftOut) -> Iterator[Sample]:
    with SourceFile(place) as file:
        if file.read(0, min(2, file.size)) in _PACKED:
            raise Corrupt("it is compressed as a whole; unpack it", file.place)
        at = number = 0
        while at < file.size:
            length = _length(file, at)
            name = printable(f"{file.name}/{number}")
            yield _sample(file, at + _HEAD.size, length, name, fields, left_out)
            at += _HEAD.size + length + _TAIL
            number += 1


def _length(file: SourceFile, at: int) -> int:
    head = file.read(at, _HEAD.size)
    length, crc = _HEAD.unpack(head)
    if crc != masked(crc32c(head[:8])) or at + _HEAD.size + length + _TAIL > file.size:
        raise Corrupt("no record, or a damaged length", file.place, at)
    return int(length)


def _sample(
    file: SourceFile,
    start: int,
    length: int,
    name: str,
    fields: tuple[str | None, str | None],
    left_out: LeftOut,
) -> Sample:
    sample = Sample(name, file.path)
    try:
        features = dict(_features(file, start, length))
        binary = {key: found[0] for key, (kind, found) in features.items() if kind == _BYTES and len(found) == 1}
        image = _image_of(fields[0], binary, file)
    except Corrupt as error:
        sample.problem = f"damaged: {error.what}"
        return sample
    sample.offset, sample.size = binary[image].start, binary[image].size
    for key, (kind, found) in features.items():
        if key == image:
            continue
        values = _values(file, kind, found)
        if values is None:
            left_out[f"feature {printable(key)}, bytes"] += 1
        else:
            sample.extra[key] = values[0] if len(values) == 1 else values
    label = choose(fields[1], sample.extra, _LABELS, what="label", path=file.place, must=False)
    sample.label = take_label(sample.extra, label)
    return sample


def _image_of(given: str | None, binary: dict[str, Field], file: SourceFile) -> str:
    """The feature with the image; by its first bytes where no name tells."""
    if given is None and not {name.lower() for name in binary} & set(_IMAGES):
        large = [name for name, field in binary.items() if field.size > _MAX_VALUE // 64]
        given = large[0] if len(large) == 1 else None
    return str(choose(given, binary, _IMAGES, what="image", path=file.place))


def _features(file: SourceFile, start: int, length: int) -> Iterator[tuple[str, tuple[int, list[Field]]]]:
    """Name, kind and values of every feature of an example."""
    for features in _submessages(file, start, length, 1):
        for entry in _submessages(file, features.start, features.size, 1):
            parts = {field.number: field for field in fields_of(file.read, entry.start, entry.size, place=file.place)}
            if 1 not in parts or 2 not in parts or parts[1].size > _MAX_VALUE:
                raise Corrupt("a feature without name or value", file.place, entry.start)
            name = file.read(parts[1].start, parts[1].size).decode("utf-8", "backslashreplace")
            for lists in fields_of(file.read, parts[2].start, parts[2].size, place=file.place):
                found = fields_of(file.read, lists.start, lists.size, place=file.place)
                yield name, (lists.number, [field for field in found if field.number == 1])


def _submessages(file: SourceFile, start: int, length: int, number: int) -> Iterator[Field]:
    for field in fields_of(file.read, start, length, place=file.place):
        if field.number == number and field.wire == BYTES:
            yield field


def _values(file: SourceFile, kind: int, found: list[Field]) -> list[Any] | None:
    """The values of a feature; None for bytes that are no text, and for what is too large to be metadata."""
    if sum(field.size for field in found) > _MAX_VALUE:
        return None
    if kind == _BYTES:
        try:
            return [file.read(field.start, field.size).decode("utf-8") for field in found]
        except UnicodeDecodeError:
            return None
    values: list[Any] = []
    for field in found:
        if field.wire == VARINT:
            values.append(signed(field.value))
        elif kind == _INTEGERS:
            at, end = field.start, field.start + field.size
            while at < end:
                value, at = varint(file.read, at, end, file.place)
                values.append(signed(value))
        elif field.wire == FIXED32 or field.size % 4 == 0:
            values += struct.unpack(f"<{field.size // 4}f", file.read(field.start, field.size))
    return values


def looks_like(glance: SourceProbe) -> bool:
    """A file whose first length has its CRC, or a folder whose first file of a usual name is one."""
    if not glance.is_folder:
        return _is_record(glance.head())
    return any(_is_record(glance.head(name)) for name in (_shards(glance) or glance.files_ending(*_SUFFIXES))[:1])


def _is_record(head: bytes) -> bool:
    return len(head) >= _HEAD.size and _HEAD.unpack_from(head)[1] == masked(crc32c(head[:8]))


SOURCE = Source(list_tfrecord, options=("image_field", "label_field"), guess=looks_like, stores=True)
