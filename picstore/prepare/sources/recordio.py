"""MXNet's RecordIO as im2rec writes it, as a source: records of a header with the label and an image.

A record is magic (u32), length (u32, with the part of a split record in the upper three bits), data, and padding to 4
bytes. Data that holds the magic at a multiple of 4 is split there, and the magic is left out. Data begins with a
header: flag (u32), label (f32), id and id2 (u64), and ``flag`` further labels (f32).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

from picstore.errors import Corrupt
from picstore.prepare.sources.inputs import MAX_INPUT, Input, Listing
from picstore.prepare.sources.labels import take_label
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.shard_files import ReadRecord, empty_files, indexed_samples, shard_files
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.location.resolve import Location

_MAGIC = 0xCED7230A
_HEADER = struct.Struct("<II")
_IMAGE_HEADER = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAX_LABELS = 1 << 16
_SUFFIXES = (".rec", ".recordio")
_OBJECT = 5  # number of values that describe an object: class, left, top, right and bottom
_TARGETS = "boxes:xyxy-normalized"


def list_recordio(location: Location, *, split: str | None = None) -> Listing:
    """List every record of a file, of a folder's ``*.rec``, or of files named by braces.

    An ``.idx`` is needed only to read on after a damaged record, and to count missing records.

    The label is the first label in the record's header. The extra keeps a label that is not an integer as ``label``,
    and several labels as ``labels``. Labels that describe objects become boxes, with label −1.
    """
    files = shard_files(location, *_SUFFIXES, split=split)
    empty = list[str]()
    samples = indexed_samples(location, files, _reader, column=1, empty=empty)
    no_label = "no labels: no record's header has one"
    return ListingBuilder(samples).build("recordio", where=location, remarks=empty_files(empty), no_label=no_label)


def _reader(file: SourceFile) -> ReadRecord:
    detection = False  # whether a previous record's labels describe objects; if so, all records' labels do

    def read(offset: int, name: str) -> tuple[SourceSample, int]:
        nonlocal detection
        part, length = _read_header(file, offset)
        if part not in (_WHOLE, _FIRST):
            raise Corrupt("a part of a record without its beginning", file.printable_path, offset)
        following = _end(file, offset, part, length)
        sample = _sample(file, offset, part, length, name, detection=detection)
        detection = detection or bool(sample.targets)
        return sample, following

    return read


def _end(file: SourceFile, offset: int, part: int, length: int) -> int:
    """Return the offset at which a record ends, including all parts of a split record."""
    while True:
        offset += _HEADER.size + (length + 3) // 4 * 4
        if part in (_WHOLE, _LAST):
            return offset
        part, length = _read_header(file, offset)


def _read_header(file: SourceFile, offset: int) -> tuple[int, int]:
    magic, word = _HEADER.unpack(file.read(offset, _HEADER.size))
    length = word & ((1 << 29) - 1)
    if magic != _MAGIC or word >> 29 > _LAST or offset + _HEADER.size + length > file.size:
        raise Corrupt("not a record", file.printable_path, offset)
    return word >> 29, length


def _sample(file: SourceFile, offset: int, part: int, length: int, name: str, *, detection: bool) -> SourceSample:
    start = offset + _HEADER.size
    if length < _IMAGE_HEADER.size:
        return SourceSample(printable(name), file.path, problem="damaged: a record too short for its header")
    flag, label, id_, _ = _IMAGE_HEADER.unpack(file.read(start, _IMAGE_HEADER.size))
    skip = _IMAGE_HEADER.size + 4 * flag
    if flag > _MAX_LABELS or skip > length:
        return SourceSample(printable(name), file.path, problem=f"damaged: a record of {flag:,} labels")
    sample = SourceSample(printable(name), file.path, start + skip, length - skip)
    if flag:
        labels = struct.unpack(f"<{flag}f", file.read(start + _IMAGE_HEADER.size, 4 * flag))
        objects = parse_objects(labels, may_be_none=detection)
        if objects is not None:
            sample.extra, sample.targets = objects, _TARGETS
        elif detection:
            return SourceSample(printable(name), file.path, problem="damaged: labels that describe no objects")
        else:
            sample.extra = {"labels": list(labels), "label": labels[0]}
    else:
        sample.extra = {"label": label}
    sample.label = take_label(sample.extra, "label")
    sample.extra["id"] = id_
    if part != _WHOLE:
        sample.offset, sample.size, sample.reader, sample.key = offset, -1, read_split, struct.pack("<I", skip)
    return sample


def parse_objects(labels: Sequence[float], *, may_be_none: bool) -> dict[str, Any] | None:
    """Parse labels of objects, written by ``im2rec --pack-label``; return None for labels of another kind.

    The labels are A (width of the header), B (width of an object), A − 2 values of any meaning, then B values per
    object: class; left, top, right and bottom from 0 to 1; B − 5 values of any meaning. Labels without objects, such as
    2 and 5, are accepted only with ``may_be_none``, because plain labels may look the same.
    """
    if len(labels) < 2 or not all(math.isfinite(value) and value.is_integer() for value in labels[:2]):
        return None
    header, width = int(labels[0]), int(labels[1])
    count, rest = divmod(len(labels) - header, max(1, width))
    if header < 2 or width < _OBJECT or rest or count < (0 if may_be_none else 1):
        return None
    objects = [labels[start : start + width] for start in range(header, len(labels), width)]
    if not all(_is_object(each) for each in objects):
        return None
    fields: dict[str, Any] = {
        "boxes": [list(each[1:_OBJECT]) for each in objects],
        "box_labels": [int(each[0]) for each in objects],
    }
    if header > 2:
        fields["header"] = list(labels[2:header])
    if width > _OBJECT:
        fields["object_values"] = [list(each[_OBJECT:]) for each in objects]
    return fields


def _is_object(values: Sequence[float]) -> bool:
    class_, left, top, right, bottom = values[:_OBJECT]
    # Coordinates are fractions of the image's sides. Accept −1 to 2, because some boxes extend beyond their images.
    in_order = -1 <= left <= right <= 2 and -1 <= top <= bottom <= 2
    return in_order and class_ >= -1 and class_.is_integer()


def read_split(source: Input) -> bytes:
    """Return the image of a record that is split into parts.

    ``source.offset`` is the offset of the first part; ``source.key`` is the number of bytes before the image in the
    joined parts.
    """
    (skip,) = struct.unpack("<I", source.key)
    parts: list[bytes] = []
    offset, part, total = source.offset, _FIRST, 0
    with SourceFile(source.path, version=source.version) as file:
        while part != _LAST and total <= MAX_INPUT:
            part, length = _read_header(file, offset)
            parts.append(file.read(offset + _HEADER.size, length))
            total += length
            offset += _HEADER.size + (length + 3) // 4 * 4
    return struct.pack("<I", _MAGIC).join(parts)[skip:]


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a file, or the first ``*.rec`` in a folder, begins with RecordIO's magic number."""
    magic = struct.pack("<I", _MAGIC)
    if probe.is_folder:
        return any(probe.head(name).startswith(magic) for name in probe.files_ending(*_SUFFIXES)[:1])
    return probe.head().startswith(magic)


FORMAT = SourceFormat(list_recordio, options=("split",), recognizes=recognizes, object_stores=True)
