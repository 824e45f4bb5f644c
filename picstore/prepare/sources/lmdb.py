"""LMDB as a source: Caffe's Datum under any key, or image files by key; read by py-lmdb (the extra ``lmdb``)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from picstore.errors import Damage, ImageError, NotADataset, Truncated
from picstore.prepare.sources.base import SourceFormat, SourceProbe, missing_library
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.protobuf import BYTES, VARINT, Field, fields_of, memory_reader, to_signed
from picstore.prepare.sources.raw_pixels import image_file
from picstore.prepare.sources.samples import SourceSample, build_listing, end_at_damage
from picstore.prepare.sources.source_file import file_version, printable

_MAGIC = b"\xde\xc0\xef\xbe"  # in the first page, after its header
_MAGIC_OFFSETS = (16, 24)  # 64-bit systems; pages of LMDB 1.0 have a longer header
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)  # fields of Datum


def list_lmdb(path: Path) -> Listing:
    """List every entry by key.

    Of a Datum the label is taken, and pixels (blue, green, red planes) if it is not encoded. All other values are taken
    for image files without label.
    """
    file = path / "data.mdb" if path.is_dir() else path
    if not file.is_file():
        raise NotADataset(f"{path} holds no data.mdb")
    no_label = "no labels: no entry is a Datum of Caffe with a label"
    version = file_version(file)
    samples = end_at_damage(_samples(file, version), file, count=_count_entries(file, version), version=version)
    return build_listing("lmdb", samples, where=path, no_label=no_label)


def _import_lmdb() -> Any:
    try:
        import lmdb
    except ImportError as error:
        raise missing_library("py-lmdb", "lmdb") from error
    return lmdb


@functools.lru_cache(1)
def _open_environment(path: str, version: str) -> Any:  # noqa: ARG001 - in the key of the cache
    """Open an LMDB without locks, anew if it has another version; a process must not open one file twice."""
    lmdb = _import_lmdb()
    try:
        return lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, max_readers=1)
    except lmdb.Error as error:
        raise Damage(f"not an LMDB that can be read: {error}", printable(path)) from error


def _count_entries(file: Path, version: str) -> int | None:
    """Number of entries that the environment states; None if it cannot be opened."""
    try:
        return int(_open_environment(str(file), version).stat()["entries"])
    except Damage:
        return None


def _check_size(environment: Any, file: Path) -> None:
    """Raise Truncated if pages are missing: a read of the memory map behind the file's end kills the process."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if file.stat().st_size < needed:
        what = f"{file.stat().st_size:,} bytes of pages that end at {needed:,}"
        raise Truncated(what, printable(str(file)), file.stat().st_size)


def _samples(file: Path, version: str) -> Iterator[SourceSample]:
    lmdb, path = _import_lmdb(), str(file)
    try:
        _check_size(_open_environment(path, version), file)
        with _open_environment(path, version).begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                datum = _datum(value)
                name = bytes(key).decode("utf-8", "backslashreplace")
                sample = SourceSample(f"{file.parent.name}/{name}", path, reader=read_lmdb, key=bytes(key))
                if datum is not None and _LABEL in datum:
                    sample.label = _int32(datum[_LABEL].value)
                yield sample
    except lmdb.Error as error:
        raise Damage(str(error), printable(path)) from error


def _int32(value: int) -> int:
    """Negative labels are written with 64 bits, by some writers with 32."""
    return value - (1 << 32) if 1 << 31 <= value < 1 << 32 else to_signed(value)


def _datum(value: Any) -> dict[int, Field] | None:
    """Fields of a Datum; None if the value is none."""
    fields: dict[int, Field] = {}
    try:
        for field in fields_of(memory_reader(value), 0, len(value)):
            if field.number > _ENCODED:
                return None
            fields[field.number] = field
    except Damage:
        return None
    wires = {field.number: field.wire for field in fields.values()}
    if wires.pop(_DATA, None) != BYTES:
        return None
    wires.pop(_FLOATS, None)
    return fields if set(wires.values()) <= {VARINT} else None


def read_lmdb(source: Input) -> bytes:
    """Reader of an entry by ``key``; the environment stays open for the next one."""
    with _open_environment(source.path, source.version).begin(buffers=True) as transaction:
        value = transaction.get(source.key)
        if value is None:
            raise ImageError("the entry is gone")
        datum = _datum(value)
        return bytes(value) if datum is None else _image(value, datum)


def _image(value: Any, datum: dict[int, Field]) -> bytes:
    data = bytes(value[datum[_DATA].start : datum[_DATA].start + datum[_DATA].size])
    if _ENCODED in datum and datum[_ENCODED].value:
        return data
    channels, height, width = (datum[number].value if number in datum else 0 for number in (1, 2, 3))
    if channels not in (1, 3) or channels * height * width != len(data) or not data:
        raise ImageError(f"a Datum of {len(data):,} bytes for {channels} × {height} × {width} pixels")
    planes = np.frombuffer(data, np.uint8).reshape(channels, height, width)
    return image_file(np.ascontiguousarray(planes[::-1].transpose(1, 2, 0)))


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a folder with data.mdb, or such a file."""
    if probe.is_folder:
        return "data.mdb" in probe.files and _has_magic(probe.head("data.mdb"))
    return _has_magic(probe.head())


def _has_magic(head: bytes) -> bool:
    return any(head[offset : offset + 4] == _MAGIC for offset in _MAGIC_OFFSETS)


FORMAT = SourceFormat(list_lmdb, recognizes=recognizes)
