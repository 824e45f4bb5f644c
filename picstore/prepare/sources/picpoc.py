"""PicPoc, version 1: ROOT/<stream>/<file>, a directory of containers, containers of records.

Numbers are little-endian. A file: 4,096 bytes of directory (magic, version, count, padding, then the end of each
container), containers. A container, a multiple of 512 bytes: magic, records, bytes of the records, CRC. A record, a
multiple of 16: magic, label, serial, bytes of the image, bytes of the extra, then both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from picstore.errors import Corrupt, PicstoreError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Listing, SourceFile, entries_of
from picstore.prepare.sources.samples import Sample, json_object, listing_of, until_damaged
from picstore.storage.location.resolve import Location

_FILE, _CONTAINER, _RECORD = 0x50494346, 0x50494343, 0x50494352
_DIRECTORY = struct.Struct("<IIII")
_CONTAINER_HEAD = struct.Struct("<IIII")
_RECORD_HEAD = struct.Struct("<IiiII")
_FIRST = 4096  # where containers begin
_BLOCK, _ALIGNED = 512, 16
_MAX_CONTAINERS = 255
_MAX_IMAGE, _MAX_EXTRA = 32 << 20, 1 << 20


def list_picpoc(place: Location) -> Listing:
    """Every record, stream by stream and file by file; the extra's fields and ``serial`` become the extra.

    A file whose writer died has no directory; its containers are found one behind the other.
    """
    names = [f"{stream}/{file}" for stream in _numbers(place, folders=True) for file in _numbers(place / stream)]
    walks = (until_damaged(_samples(place / name, name), place / name, name) for name in names)
    return listing_of("picpoc", (sample for walk in walks for sample in walk))


def _numbers(place: Location, *, folders: bool = False) -> list[str]:
    """Names in a folder that are numbers, in their order; all of them, or only those of folders."""
    found = [name for name, is_folder in entries_of(place) if name.isdecimal() and (is_folder or not folders)]
    return sorted(found, key=int)


def _samples(place: Location, name: str) -> Iterator[Sample]:
    with SourceFile(place) as file:
        number = 0
        for start, end in _containers(file):
            for sample in until_damaged(_records(file, start, end, name, number), place, name):
                number += 1
                yield sample


def _containers(file: SourceFile) -> Iterator[tuple[int, int]]:
    magic, version, count, _ = _DIRECTORY.unpack(file.read(0, _DIRECTORY.size))
    if (magic, version) == (0, 0):
        yield from _without_directory(file)
        return
    if magic != _FILE or version != 1 or count > _MAX_CONTAINERS:
        raise Corrupt(f"no file of PicPoc version 1 (magic {magic:#x}, version {version})", file.place)
    start = _FIRST
    for end in struct.unpack(f"<{count}Q", file.read(_DIRECTORY.size, 8 * count)):
        if not start < end <= file.size:
            raise Corrupt(f"a container from {start:,} to {end:,} in a file of {file.size:,} bytes", file.place)
        yield start, end
        start = end


def _without_directory(file: SourceFile) -> Iterator[tuple[int, int]]:
    start = _FIRST
    while start + _CONTAINER_HEAD.size <= file.size:
        magic, _, size, _ = _CONTAINER_HEAD.unpack(file.read(start, _CONTAINER_HEAD.size))
        if magic != _CONTAINER:
            raise Corrupt("it was never closed, and its tail holds no container", file.place, start)
        end = start + -(-(_CONTAINER_HEAD.size + size) // _BLOCK) * _BLOCK
        yield start, end
        start = end


def _records(file: SourceFile, start: int, end: int, name: str, number: int) -> Iterator[Sample]:
    magic, count, size, _ = _CONTAINER_HEAD.unpack(file.read(start, _CONTAINER_HEAD.size))
    at, stop = start + _CONTAINER_HEAD.size, start + _CONTAINER_HEAD.size + size
    if magic != _CONTAINER or stop > end:
        raise Corrupt("no container", file.place, start)
    for k in range(count):
        if at + _RECORD_HEAD.size > stop:
            raise Corrupt(f"a container of {k} records that should have {count}", file.place, at)
        magic, label, serial, image, extra = _RECORD_HEAD.unpack(file.read(at, _RECORD_HEAD.size))
        length = -(-(_RECORD_HEAD.size + image + extra) // _ALIGNED) * _ALIGNED
        if magic != _RECORD or image > _MAX_IMAGE or extra > _MAX_EXTRA or at + length > stop:
            raise Corrupt("no record", file.place, at)
        sample = Sample(f"{name}/{number + k}", file.path, at + _RECORD_HEAD.size, image, label)
        sample.extra = json_object(file.read(sample.offset + image, extra)) or {}
        sample.extra["serial"] = serial
        yield sample
        at += length


def looks_like(glance: SourceProbe) -> bool:
    """A folder of numbered folders, of whose files the first one has PicPoc's magic."""
    streams = sorted((name for name in glance.folders if name.isdecimal()), key=int)
    try:
        files = _numbers(glance.place / streams[0])
    except (IndexError, PicstoreError):
        return False
    return bool(files) and glance.head(f"{streams[0]}/{files[0]}")[:8] == struct.pack("<II", _FILE, 1)


SOURCE = Source(list_picpoc, guess=looks_like, stores=True)
