"""MXNet's RecordIO as im2rec writes it: records of a header with the label and an image.

A record: magic u32, length u32 (its upper three bits say which part of a split record it is), the data, padding to 4.
Data that holds the magic at a multiple of 4 is split there, and the magic left out. The header: flag u32, label f32, id
and id2 u64, and where flag is not 0 so many f32 labels behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from picstore.errors import Corrupt
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import MAX_INPUT, Input, Listing, SourceFile, printable
from picstore.prepare.sources.samples import Sample, files_of, listing_of, take_label, until_damaged
from picstore.storage.location.resolve import Location

_MAGIC = 0xCED7230A
_HEAD = struct.Struct("<II")
_IMAGE_HEAD = struct.Struct("<IfQQ")
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_MAX_LABELS = 1 << 16
_SUFFIXES = (".rec", ".recordio")


def list_recordio(place: Location) -> Listing:
    """Every record of a file, of a folder's ``*.rec``, or of files named by braces; the .idx file is not needed.

    The label is the header's, or the first of several, where it is a whole number; otherwise it stays in the extra as
    ``label`` (``labels`` for several).
    """
    files = files_of(place, *_SUFFIXES)
    return listing_of("recordio", (sample for file in files for sample in until_damaged(_samples(file), file)))


def _samples(place: Location) -> Iterator[Sample]:
    with SourceFile(place) as file:
        at = number = 0
        while at < file.size:
            part, length = _head(file, at)
            if part not in (_WHOLE, _FIRST):
                raise Corrupt("a part of a record without its beginning", file.place, at)
            yield _sample(file, at, part, length, f"{file.name}/{number}")
            while True:
                at += _HEAD.size + (length + 3) // 4 * 4
                if part in (_WHOLE, _LAST):
                    break
                part, length = _head(file, at)
            number += 1


def _head(file: SourceFile, at: int) -> tuple[int, int]:
    magic, word = _HEAD.unpack(file.read(at, _HEAD.size))
    length = word & ((1 << 29) - 1)
    if magic != _MAGIC or word >> 29 > _LAST or at + _HEAD.size + length > file.size:
        raise Corrupt("no record", file.place, at)
    return word >> 29, length


def _sample(file: SourceFile, at: int, part: int, length: int, name: str) -> Sample:
    start = at + _HEAD.size
    if length < _IMAGE_HEAD.size:
        return Sample(printable(name), file.path, problem="damaged: a record too short for its header")
    flag, label, id_, _ = _IMAGE_HEAD.unpack(file.read(start, _IMAGE_HEAD.size))
    skip = _IMAGE_HEAD.size + 4 * flag
    if flag > _MAX_LABELS or skip > length:
        return Sample(printable(name), file.path, problem=f"damaged: a record of {flag:,} labels")
    sample = Sample(printable(name), file.path, start + skip, length - skip)
    if flag:
        labels = struct.unpack(f"<{flag}f", file.read(start + _IMAGE_HEAD.size, 4 * flag))
        sample.extra = {"labels": list(labels), "label": labels[0]}
    else:
        sample.extra = {"label": label}
    sample.label = take_label(sample.extra, "label")
    sample.extra["id"] = id_
    if part != _WHOLE:
        sample.offset, sample.size, sample.reader, sample.key = at, -1, read_split, struct.pack("<I", skip)
    return sample


def read_split(source: Input) -> bytes:
    """Reader of a record that is split where its data holds the magic; the key says how long its header is."""
    (skip,) = struct.unpack("<I", source.key)
    parts: list[bytes] = []
    at, part, total = source.offset, _FIRST, 0
    with SourceFile(source.path) as file:
        while part != _LAST and total <= MAX_INPUT:
            part, length = _head(file, at)
            parts.append(file.read(at + _HEAD.size, length))
            total += length
            at += _HEAD.size + (length + 3) // 4 * 4
    return struct.pack("<I", _MAGIC).join(parts)[skip:]


def looks_like(glance: SourceProbe) -> bool:
    """A file that begins with the magic, or a folder of files ``*.rec``."""
    magic = struct.pack("<I", _MAGIC)
    if glance.is_folder:
        return any(glance.head(name).startswith(magic) for name in glance.files_ending(*_SUFFIXES)[:1])
    return glance.head().startswith(magic)


SOURCE = Source(list_recordio, guess=looks_like, stores=True)
