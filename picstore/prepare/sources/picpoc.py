"""PicPoc, version 1, as a source: ROOT/<stream>/<file>, each file with containers and their directory.

Integers are little-endian. A file is a directory of 4,096 bytes (magic, version, count, padding, then the end of each
container) and containers. A container, a multiple of 512 bytes, begins with magic, number of records, their size
in bytes, and CRC. A record, a multiple of 16 bytes, is magic, label, serial, sizes of image and extra, image, extra.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from picstore.errors import Corrupt, Damage, PicstoreError
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import end_at_damage
from picstore.prepare.sources.metadata import SkippedFields
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.source_file import SourceFile, visible_entries
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.location.resolve import Location

_FILE, _CONTAINER, _RECORD = 0x50494346, 0x50494343, 0x50494352
_DIRECTORY = struct.Struct("<IIII")
_CONTAINER_HEAD = struct.Struct("<IIII")
_RECORD_HEAD = struct.Struct("<IiiII")
_FIRST_CONTAINER = 4096  # offset in bytes of a file's first container
_CONTAINER_ALIGNMENT, _RECORD_ALIGNMENT = 512, 16
_MAX_CONTAINERS = 255
_MAX_IMAGE, _MAX_EXTRA = 32 << 20, 1 << 20


def list_picpoc(location: Location) -> Listing:
    """List every record in order of stream and file; its extra and its number ``serial`` become the sample's extra.

    A file whose writer died has no directory; its containers are found by their headers.
    """
    names = [f"{stream}/{file}" for stream in _numbers(location, folders=True) for file in _numbers(location / stream)]
    skipped, no_label = SkippedFields(), "no labels: no record has one"
    per_file = (end_at_damage(_samples(location / name, name, skipped), location / name, name) for name in names)
    samples = (sample for samples in per_file for sample in samples)
    return ListingBuilder(samples).build("picpoc", where=location, remarks=skipped.remarks(), no_label=no_label)


def _numbers(location: Location, *, folders: bool = False) -> list[str]:
    """Return the names in a folder that are integers, in numeric order; if ``folders``, only names of sub-folders."""
    found = [name for name, is_folder in visible_entries(location) if name.isdecimal() and (is_folder or not folders)]
    return sorted(found, key=int)


def _samples(location: Location, name: str, skipped: SkippedFields) -> Iterator[SourceSample]:
    with SourceFile(location) as file:
        number = 0
        for start, end in _containers(file):
            records = _records(file, start, end, name, number, skipped)
            count = _count_records(file, start)
            for sample in end_at_damage(records, location, name, count=count, first=number):
                number += 1
                yield sample


def _count_records(file: SourceFile, start: int) -> int | None:
    try:
        magic, count, size, _ = _CONTAINER_HEAD.unpack(file.read(start, _CONTAINER_HEAD.size))
    except Damage:
        return None
    return count if magic == _CONTAINER and count * _RECORD_HEAD.size <= size else None


def _containers(file: SourceFile) -> Iterator[tuple[int, int]]:
    magic, version, count, _ = _DIRECTORY.unpack(file.read(0, _DIRECTORY.size))
    if (magic, version) == (0, 0):
        yield from _containers_by_header(file)
        return
    if magic != _FILE or version != 1 or count > _MAX_CONTAINERS:
        raise Corrupt(f"not a file of PicPoc version 1 (magic {magic:#x}, version {version})", file.printable_path)
    start = _FIRST_CONTAINER
    for end in struct.unpack(f"<{count}Q", file.read(_DIRECTORY.size, 8 * count)):
        if not start < end <= file.size:
            what = f"a container from {start:,} to {end:,} in a file of {file.size:,} bytes"
            raise Corrupt(what, file.printable_path)
        yield start, end
        start = end


def _containers_by_header(file: SourceFile) -> Iterator[tuple[int, int]]:
    start = _FIRST_CONTAINER
    while start + _CONTAINER_HEAD.size <= file.size:
        magic, _, size, _ = _CONTAINER_HEAD.unpack(file.read(start, _CONTAINER_HEAD.size))
        if magic != _CONTAINER:
            raise Corrupt("it was never closed, and its tail holds no container", file.printable_path, start)
        end = start + -(-(_CONTAINER_HEAD.size + size) // _CONTAINER_ALIGNMENT) * _CONTAINER_ALIGNMENT
        yield start, end
        start = end


def _records(
    file: SourceFile, start: int, end: int, name: str, number: int, skipped: SkippedFields
) -> Iterator[SourceSample]:
    magic, count, size, _ = _CONTAINER_HEAD.unpack(file.read(start, _CONTAINER_HEAD.size))
    offset, stop = start + _CONTAINER_HEAD.size, start + _CONTAINER_HEAD.size + size
    if magic != _CONTAINER or stop > end:
        raise Corrupt("not a container", file.printable_path, start)
    for k in range(count):
        if offset + _RECORD_HEAD.size > stop:
            raise Corrupt(f"a container of {k} records that should have {count}", file.printable_path, offset)
        magic, label, serial, image, extra = _RECORD_HEAD.unpack(file.read(offset, _RECORD_HEAD.size))
        length = -(-(_RECORD_HEAD.size + image + extra) // _RECORD_ALIGNMENT) * _RECORD_ALIGNMENT
        if magic != _RECORD or image > _MAX_IMAGE or extra > _MAX_EXTRA or offset + length > stop:
            raise Corrupt("not a record", file.printable_path, offset)
        sample = SourceSample(f"{name}/{number + k}", file.path, offset + _RECORD_HEAD.size, image, label)
        found = json_object(file.read(sample.offset + image, extra), skipped) if extra else {}
        if found is None:
            skipped["extra (not a JSON object)"] += 1
        sample.extra = {**(found or {}), "serial": serial}
        yield sample
        offset += length


def recognizes(probe: SourceProbe) -> bool:
    """Return whether the first numbered file in the first numbered folder has PicPoc's magic number."""
    streams = sorted((name for name in probe.folders if name.isdecimal()), key=int)
    try:
        files = _numbers(probe.location / streams[0])
    except (IndexError, PicstoreError):
        return False
    return bool(files) and probe.head(f"{streams[0]}/{files[0]}")[:8] == struct.pack("<II", _FILE, 1)


FORMAT = SourceFormat(list_picpoc, recognizes=recognizes, object_stores=True)
