"""LMDB as a source: Caffe's Datum under any key, image files by key, or images with texts; read by py-lmdb."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from picstore.display.progress import ProgressCallback
from picstore.errors import Corrupt, Damage, ImageError, NotADataset, Truncated, UsageError, counted
from picstore.prepare.engine.worker_processes import Died, LocalEngine
from picstore.prepare.sources.compressed_and_raw import image_file
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import end_at_damage
from picstore.prepare.sources.metadata import decode_text
from picstore.prepare.sources.protobuf import BYTES, VARINT, Field, fields_of, memory_reader, to_signed
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.source_file import file_version, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe, import_library

_MAGIC = b"\xde\xc0\xef\xbe"
# Possible offsets of the magic number, after the first page's header of 16 bytes, or 24 bytes from LMDB 1.0 on.
_MAGIC_OFFSETS = (16, 24)
_NUMBER, _IMAGE, _TEXT = b"num-samples", b"image-", b"label-"  # key and key prefixes in an LMDB for text recognition
_MAX_DIGITS = 12
_NAMED_BYTES = 48  # size in bytes of the value of an entry that refers to a named database inside the LMDB
_PROBED = 8  # number of entries to read to learn whether an LMDB consists of named databases
_ENTRIES = 8192  # number of entries that a task lists, in 0.1 s
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)  # field numbers of Caffe's Datum


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Task to list up to ``limit`` entries with keys above ``after``, and their texts if ``with_texts`` is true."""

    path: str
    version: str
    limit: int
    after: bytes = b""
    with_texts: bool = False


@dataclass(slots=True)
class _Entry:
    key: bytes
    label: int | None = None
    text: bytes | None = None
    problem: str = ""


@dataclass(slots=True)
class _Found:
    entries: list[_Entry]
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class _Stated:
    """Facts that an LMDB states about its entries.

    Attributes:
        named: names of the named databases; empty if the LMDB has other entries.
        with_texts: number of images in an LMDB for text recognition; None for any other LMDB.
    """

    entries: int
    named: tuple[str, ...]
    with_texts: int | None


def list_lmdb(path: Path) -> Listing:
    """List every entry of an LMDB in the order of keys.

    A Caffe Datum has a label, and an encoded image or pixels (blue, green and red planes). In an LMDB for text
    recognition (``image-000000001``, ``label-000000001``, ``num-samples``) the texts become captions. Any other entry
    is taken for an image file without a label.

    Another process reads the file, because py-lmdb trusts its content, and damage can kill the process. An entry that
    does so, and all later entries, become inputs that fail.
    """
    file = path / "data.mdb" if path.is_dir() else path
    if not file.is_file():
        raise NotADataset(f"{path} holds no data.mdb")
    _import_lmdb()
    version = file_version(file)
    stated = _state(file, version)
    if stated is not None and stated.named:
        listed = ", ".join(stated.named)
        raise UsageError(f"{path} holds named databases, {listed}; copy the entries of one into an LMDB of their own")
    images = stated.with_texts if stated is not None else None
    count = images if images is not None or stated is None else stated.entries
    no_label = "no labels: no entry is a Datum of Caffe with a label"
    counts: Counter[str] = Counter()
    samples = end_at_damage(
        _samples(file, version, with_texts=images is not None, counts=counts), file, count=count, version=version
    )
    if images is None or stated is None:
        return ListingBuilder(samples).build("lmdb", where=path, no_label=no_label)
    no_label = "no labels: the texts of images are captions"
    remarks = _remarks_on_texts(counts, stated.entries)
    return ListingBuilder(samples).build("lmdb", where=path, remarks=remarks, no_label=no_label)


def _remarks_on_texts(counts: Counter[str], entries: int) -> Iterator[str]:
    """Yield messages on images without texts and on entries left out; iterate only after all samples were listed."""
    images, texts = counts["images"], counts["texts"]
    if images > texts:
        yield f"texts: {images - texts:,} of {counted(images, 'image')} have none"
    if (others := entries - 1 - images - texts) > 0:
        yield f"{others:,} entries that are neither images nor their texts: left out"


def _import_lmdb() -> Any:
    return import_library("lmdb", "py-lmdb", "lmdb")


@functools.lru_cache(1)
def _open_environment(path: str, version: str) -> Any:  # noqa: ARG001 - in the key of the cache
    """Return an LMDB opened without locks; cached, because a process must not open the same LMDB twice."""
    lmdb = _import_lmdb()
    try:
        return lmdb.open(path, subdir=False, readonly=True, lock=False, readahead=False, max_readers=1, max_dbs=_PROBED)
    except lmdb.Error as error:
        raise Damage(f"not an LMDB that can be read: {error}", printable(path)) from error


def _state(file: Path, version: str) -> _Stated | None:
    """Run :func:`read_stated` in another process; return None if damage kills that process or prevents reading."""
    try:
        with closing(LocalEngine(1).run(read_stated, deque([_Chunk(str(file), version, 0)]))) as outcomes:
            outcome = next(outcomes)[1]
    except Damage:
        return None
    return None if isinstance(outcome, Died) else outcome


def read_stated(chunk: _Chunk, _: ProgressCallback) -> _Stated:
    """Count an LMDB's entries and find named databases. Runs in a separate process, because damage may kill it."""
    lmdb, environment = _import_lmdb(), _open_environment(chunk.path, chunk.version)
    try:
        entries = int(environment.stat()["entries"])
        _check_size(environment, Path(chunk.path))
        with environment.begin(buffers=True) as transaction:
            first = [bytes(key) for key, value in islice(transaction.cursor(), _PROBED) if len(value) == _NAMED_BYTES]
            named = tuple(decode_text(key) for key in first if _is_named(environment, transaction, key))
            number = transaction.get(_NUMBER)
            text = bytes(number) if number is not None and len(number) <= _MAX_DIGITS else b""
            has_first = any(transaction.get(_IMAGE + b"%09d" % k) is not None for k in (0, 1))
        all_named = named if len(named) == min(entries, _PROBED) else ()
        return _Stated(entries, all_named, int(text) if text.isdigit() and has_first and int(text) <= entries else None)
    except (lmdb.Error, Truncated):
        return _Stated(int(environment.stat()["entries"]), (), None)


def _is_named(environment: Any, transaction: Any, key: bytes) -> bool:
    try:
        environment.open_db(key, transaction, create=False)
    except (_import_lmdb().Error, ValueError):
        return False
    return True


def _check_size(environment: Any, file: Path) -> None:
    """Raise Truncated if the file lacks pages, because reading a memory map beyond its file kills the process."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if file.stat().st_size < needed:
        what = f"{file.stat().st_size:,} bytes of pages that end at {needed:,}"
        raise Truncated(what, printable(str(file)), file.stat().st_size)


def _samples(file: Path, version: str, *, with_texts: bool, counts: Counter[str]) -> Iterator[SourceSample]:
    """Yield samples in the order of keys; raise Corrupt at an entry that kills the process that reads the entry."""
    tasks = deque([_Chunk(str(file), version, _ENTRIES, with_texts=with_texts)])
    with closing(LocalEngine(1).run(list_entries, tasks)) as outcomes:
        for chunk, outcome in outcomes:
            if isinstance(outcome, Died):
                if chunk.limit == 1:
                    raise Corrupt(f"an entry that cannot be read: {outcome}", printable(str(file)))
                tasks.append(replace(chunk, limit=max(1, chunk.limit // 32)))
                continue
            for entry in outcome.entries:
                counts.update(images=1, texts=entry.text is not None)
                yield _sample(entry, file, str(file))
            if outcome.damage is not None:
                raise outcome.damage
            if len(outcome.entries) == chunk.limit:
                tasks.append(replace(chunk, after=outcome.entries[-1].key))


def _sample(entry: _Entry, file: Path, path: str) -> SourceSample:
    name = entry.key.decode("utf-8", "backslashreplace")
    sample = SourceSample(f"{file.parent.name}/{name}", path, problem=entry.problem, reader=read_lmdb, key=entry.key)
    sample.label = entry.label
    if entry.text is not None:
        sample.extra = {"caption": decode_text(entry.text)}
    return sample


def list_entries(chunk: _Chunk, _: ProgressCallback) -> _Found:
    """List the entries that a task asks for. Runs in a separate process, because damage may kill it."""
    lmdb, found = _import_lmdb(), _Found([])
    try:
        environment = _open_environment(chunk.path, chunk.version)
        _check_size(environment, Path(chunk.path))
        with environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            if not cursor.set_range(chunk.after or (_IMAGE if chunk.with_texts else b"\0")):
                return found
            for key, value in cursor:
                if bytes(key) == chunk.after:
                    continue
                if chunk.with_texts and not bytes(key).startswith(_IMAGE):
                    break
                found.entries.append(_entry(bytes(key), value, transaction, chunk))
                # Stop before the loop reads the value of the next entry: damage there may kill this process.
                if len(found.entries) == chunk.limit:
                    break
    except lmdb.Error as error:
        found.damage = Damage(str(error), printable(chunk.path))
    except Damage as error:
        found.damage = error
    return found


def _entry(key: bytes, value: Any, transaction: Any, chunk: _Chunk) -> _Entry:
    if len(value) > Path(chunk.path).stat().st_size:
        return _Entry(key, problem=f"damaged: a value of {len(value):,} bytes, more than the file has")
    if chunk.with_texts:
        text = transaction.get(_TEXT + key[len(_IMAGE) :])
        return _Entry(key, text=None if text is None else bytes(text))
    datum = _datum(value)
    return _Entry(key, None if datum is None or _LABEL not in datum else _int32(datum[_LABEL].value))


def _int32(value: int) -> int:
    """Convert an unsigned varint to a signed label. Most writers store a negative label in 64 bits, some in 32."""
    return value - (1 << 32) if 1 << 31 <= value < 1 << 32 else to_signed(value)


def _datum(value: Any) -> dict[int, Field] | None:
    """Parse the value of an entry as a Datum; return the Datum's fields by number, or None for any other value."""
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
    """Return the image file in the entry whose key is the input's ``key``; the LMDB stays open for the next input."""
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
    """Return whether a location is an LMDB file, or a folder with an LMDB file ``data.mdb``."""
    if probe.is_folder:
        return "data.mdb" in probe.files and _has_magic(probe.head("data.mdb"))
    return _has_magic(probe.head())


def _has_magic(head: bytes) -> bool:
    return any(head[offset : offset + 4] == _MAGIC for offset in _MAGIC_OFFSETS)


FORMAT = SourceFormat(list_lmdb, recognizes=recognizes)
