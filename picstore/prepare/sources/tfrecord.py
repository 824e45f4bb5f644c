"""TFRecord files of tf.Example as a source.

A record is length (u64), masked CRC-32C of the length, data, and masked CRC-32C of the data. A tf.Example maps names to
lists of bytes, floats or integers.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from picstore.errors import Corrupt, UsageError
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.labels import LABEL_FIELDS, RowLabels
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.metadata import SkippedFields, decode_if_text
from picstore.prepare.sources.protobuf import BYTES, FIXED32, VARINT, Field, fields_of, read_varint, to_signed
from picstore.prepare.sources.samples import IMAGE_FIELDS, SourceSample, choose_image
from picstore.prepare.sources.shard_files import ReadRecord, empty_files, indexed_samples, missing_shards, shard_files
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.prepare.sources.splits import choose_split
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.location.resolve import Location

_HEADER = struct.Struct("<QI")
_DATA_CRC = 4  # size in bytes of the CRC that follows a record's data
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # numbers of the fields of tf.Feature that hold its list of values, by type
# Largest size in bytes of a feature that goes into the extra; also the largest number of values of such a feature.
_MAX_VALUE = 1 << 16
_MAX_FEATURES = 1 << 12
_IMAGES = ("image/encoded", "image_raw", "image/raw", *IMAGE_FIELDS)
_LABELS = ("image/class/label", "image/class/text", *LABEL_FIELDS)
# Number of examples after which, if none of them has an image, the source is rejected.
_TRIED = 1000
_BOXES = "image/object/bbox/xmin"  # feature by which TensorFlow's detection API stores objects
_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecs")
_COMPRESSED = (b"\x1f\x8b", b"\x78\x9c", b"\x78\x01", b"\x78\xda")  # first bytes of gzip and zlib files


def list_tfrecord(
    location: Location, *, image_field: str | None = None, label_field: str | None = None, split: str | None = None
) -> Listing:
    """List every example of a file, of a folder's ``*.tfrecord`` or ``x-00000-of-00128``, or of files named by braces.

    Integers, floats and strings become the extra, several values of a feature as a list; other bytes are left out.
    Listing checks the CRC of each record's length; reading an image checks that of its record's data. An example
    without an image becomes an input that fails. Raise UsageError if none of the first 1,000 examples has an image.
    """
    files = _files(location, split)
    skipped, empty, unclear = SkippedFields(), list[str](), list[UsageError]()
    reader = partial(_reader, image_field=image_field, label_field=label_field, skipped=skipped, unclear=unclear)
    absent = missing_shards(file.name for file in files) if location.is_folder() else ()
    with_boxes = 0

    def samples() -> Iterator[SourceSample]:
        nonlocal with_boxes
        found = False
        for sample in indexed_samples(location, files, reader, column=0, empty=empty):
            with_boxes += _BOXES in sample.extra
            found |= sample.size >= 0
            if len(unclear) >= _TRIED and not found:
                raise unclear[0]
            yield sample
        if unclear and not found:
            raise unclear[0]

    def remarks() -> Iterator[str]:
        yield from itertools.chain(skipped.remarks(), empty_files(empty), absent)
        if with_boxes:
            what = f"{_BOXES} and the other fields of objects are metadata"
            yield f"{what} in {with_boxes:,} samples; for targets, export COCO, Pascal VOC or YOLO"

    return ListingBuilder(samples()).build("tfrecord", where=location, remarks=remarks(), labels=label_field)


def _files(location: Location, split: str | None) -> list[Location]:
    if location.is_folder() and (shards := _shards(SourceProbe.inspect(location))):
        return [location / name for name in choose_split(shards, str, split, location)]
    return shard_files(location, *_SUFFIXES, split=split)


def _shards(probe: SourceProbe) -> list[str]:
    """Return the names of files numbered as TensorFlow's tools number shards, ``name-00000-of-00128``."""
    return [name for name in probe.files if "-of-" in name and ".parquet" not in name]


def _reader(
    file: SourceFile,
    *,
    image_field: str | None,
    label_field: str | None,
    skipped: SkippedFields,
    unclear: list[UsageError],
) -> ReadRecord:
    if file.read(0, min(2, file.size)) in _COMPRESSED:
        raise Corrupt("it is compressed as a whole; unpack it", file.printable_path)
    labels = RowLabels(label_field, _LABELS)

    def read(offset: int, name: str) -> tuple[SourceSample, int]:
        length = _read_length(file, offset)
        try:
            sample = _sample(file, offset + _HEADER.size, length, name, image_field, labels, skipped)
        except UsageError as error:
            unclear.append(error)
            sample = SourceSample(name, file.path, problem=f"no image: {error}")
        return sample, offset + _HEADER.size + length + _DATA_CRC

    return read


def _read_length(file: SourceFile, offset: int) -> int:
    head = file.read(offset, _HEADER.size)
    length, crc = _HEADER.unpack(head)
    if crc != masked(crc32c(head[:8])) or offset + _HEADER.size + length + _DATA_CRC > file.size:
        raise Corrupt("not a record, or a damaged length", file.printable_path, offset)
    return int(length)


def _sample(
    file: SourceFile,
    start: int,
    length: int,
    name: str,
    image_field: str | None,
    labels: RowLabels,
    skipped: SkippedFields,
) -> SourceSample:
    sample = SourceSample(name, file.path)
    try:
        features = _features(file, start, length)
        binary = {key: found[0] for key, (kind, found) in features.items() if kind == _BYTES and len(found) == 1}
        image = _choose_image(image_field, binary, file)
    except Corrupt as error:
        sample.problem = f"damaged: {error.what}"
        return sample
    sample.offset, sample.size, sample.frame = binary[image].start, binary[image].size, (start, length)
    for key, (kind, found) in features.items():
        if key == image:
            continue
        values = _values(file, kind, found)
        if values is None:
            skipped[f"feature {printable(key)}, bytes"] += 1
        else:
            sample.extra[key] = values[0] if len(values) == 1 else values
    sample.label = labels.take(sample.extra)
    return sample


def _choose_image(given: str | None, binary: dict[str, Field], file: SourceFile) -> str:
    """Return the image feature: the user's, else one with a usual name, else the only feature of more than 1 KiB."""
    if given is None and not {name.lower() for name in binary} & set(_IMAGES):
        large = [name for name, field in binary.items() if field.size > _MAX_VALUE // 64]
        given = large[0] if len(large) == 1 else None
    return choose_image(given, binary, file.printable_path, _IMAGES)


def _features(file: SourceFile, start: int, length: int) -> dict[str, tuple[int, list[Field]]]:
    """Return, by name, each feature's kind (_BYTES, _FLOATS or _INTEGERS) and first _MAX_VALUE + 1 values, unparsed."""
    count = 0
    by_name: dict[str, tuple[int, list[Field]]] = {}
    for features in _submessages(file, start, length, 1):
        for entry in _submessages(file, features.start, features.size, 1):
            count += 1
            if count > _MAX_FEATURES:
                raise Corrupt(f"more than {_MAX_FEATURES:,} features", file.printable_path, entry.start)
            fields = fields_of(file.read, entry.start, entry.size, file=file.printable_path)
            pair = {field.number: field for field in fields if field.number in (1, 2)}
            if 1 not in pair or 2 not in pair or pair[1].size > _MAX_VALUE:
                raise Corrupt("a feature without name or value", file.printable_path, entry.start)
            name = file.read(pair[1].start, pair[1].size).decode("utf-8", "surrogateescape")
            if name in by_name:
                raise Corrupt(f"the feature {printable(name)} comes twice", file.printable_path, entry.start)
            for lists in fields_of(file.read, pair[2].start, pair[2].size, file=file.printable_path):
                found = fields_of(file.read, lists.start, lists.size, file=file.printable_path)
                ones = (field for field in found if field.number == 1)
                by_name[name] = lists.number, list(itertools.islice(ones, _MAX_VALUE + 1))
    return by_name


def _submessages(file: SourceFile, start: int, length: int, number: int) -> Iterator[Field]:
    for field in fields_of(file.read, start, length, file=file.printable_path):
        if field.number == number and field.wire == BYTES:
            yield field


def _values(file: SourceFile, kind: int, found: list[Field]) -> list[Any] | None:
    """Return the values of a feature; None if they are bytes that are not text, or too large for metadata."""
    if len(found) > _MAX_VALUE or sum(field.size for field in found) > _MAX_VALUE:
        return None
    if kind == _BYTES:
        texts = [decode_if_text(file.read(field.start, field.size)) for field in found]
        return None if None in texts else texts
    values: list[Any] = []
    for field in found:
        if field.wire == VARINT:
            values.append(to_signed(field.value))
        elif kind == _INTEGERS:
            offset, end = field.start, field.start + field.size
            while offset < end:
                value, offset = read_varint(file.read, offset, end, file.printable_path)
                values.append(to_signed(value))
        elif field.wire == FIXED32 or field.size % 4 == 0:
            values += struct.unpack(f"<{field.size // 4}f", file.read(field.start, field.size))
    return values


def recognizes(probe: SourceProbe) -> bool:
    """Return whether, in a file or a folder's first TFRecord file, the CRC of the first record's length is right."""
    if not probe.is_folder:
        return _is_record(probe.head())
    return any(_is_record(probe.head(name)) for name in (_shards(probe) or probe.files_ending(*_SUFFIXES))[:1])


def _is_record(head: bytes) -> bool:
    return len(head) >= _HEADER.size and _HEADER.unpack_from(head)[1] == masked(crc32c(head[:8]))


FORMAT = SourceFormat(
    list_tfrecord, options=("image_field", "label_field", "split"), recognizes=recognizes, object_stores=True
)
