"""Shard files of a source: their names, indexes that state their contents, and records read with an index."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

from picstore.errors import Damage, NotADataset, PicstoreError, UsageError
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.lost_samples import describe_damage, end_at_damage
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.source_file import SourceFile, named_file, printable, read_whole, visible_entries
from picstore.prepare.sources.splits import choose_split
from picstore.storage.location.resolve import Location, locate, map_concurrently

# Function (offset of a record, name of its sample) that returns the sample and the offset of the next record.
ReadRecord = Callable[[int, str], tuple[SourceSample, int]]

_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_MAX_NAMES = 1 << 20  # largest number of names to which a brace pattern may expand


def shard_files(location: Location, *suffixes: str, split: str | None = None) -> list[Location]:
    """List the shard files of a location: a single file, a folder's files with ``suffixes``, or files named by braces.

    Raise NotADataset if a file is missing or the folder has no such file. Raise UsageError if braces stand for more
    than a million names, or if the files belong to several splits and ``split`` is None.
    """
    if location.is_folder():
        found = [location / entry.name for entry in visible_entries(location) if entry.name.lower().endswith(suffixes)]
        if not found:
            raise NotADataset(f"{location} holds no files *{' or *'.join(suffixes)}")
        return choose_split(found, lambda file: file.name, split, location)
    files = [location] if location.exists() else [locate(name) for name in expand_braces(str(location))]
    for file, is_file in zip(files, map_concurrently(lambda file: file.is_file(), files), strict=True):
        if not is_file:
            raise NotADataset(f"{file} is not a file" if file.exists() else f"{file} does not exist")
    # Look for names of splits only below the last folder before any brace, which all files share.
    folder = len(str(location).partition("{")[0].rpartition("/")[0])
    return choose_split(files, lambda file: str(file)[folder:], split, location)


def expand_braces(pattern: str) -> list[str]:
    """Expand ``a-{000..003}.tar`` or ``{train,val}-0.tar``; raise UsageError beyond a million names."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last, words = match.groups()
    if words is not None:
        middles = words.split(",")
    else:
        step = 1 if int(last) >= int(first) else -1
        width = len(first) if first.startswith("0") else 1
        numbers = range(int(first), int(last) + step, step)
        middles = [f"{number:0{width}d}" for number in numbers[: _MAX_NAMES + 1]]
    rest = expand_braces(pattern[match.end() :])
    if len(middles) * len(rest) > _MAX_NAMES:
        raise UsageError(f"{pattern} stands for too many files; give braces for at most {_MAX_NAMES:,}")
    return [pattern[: match.start()] + middle + tail for middle, tail in itertools.product(middles, rest)]


_MAX_INDEX_JSON = 1 << 30  # largest size in bytes of an index.json, the list of a dataset's shards


def read_index(folder: Location, entries: str) -> dict[str, Any]:
    """Return the object in ``folder/index.json``; raise UsageError unless it has a list of objects ``entries``."""
    path = folder / "index.json"
    if not path.is_file():
        raise NotADataset(f"{folder} has no index.json")
    index = json_object(read_whole(path, _MAX_INDEX_JSON)) or {}
    found = index.get(entries)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UsageError(f"{path} is not an index that can be read: it needs a list of objects, {entries!r}")
    return index


def listed_file(folder: Location, name: Any) -> Location:
    """Locate a file that index.json names; raise UsageError unless the file lies below the folder of the index."""
    try:
        return named_file(folder, name)
    except UsageError as error:
        raise UsageError(f"{folder / 'index.json'}: {error}") from error


def checked_count(value: Any, file: object) -> int:
    """Return a count or size; raise UsageError, naming ``file``, unless it is an integer from 0 to 2⁶³ − 1."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise UsageError(f"{file}: {value!r} stands where a count must be, 0 or a whole number above it")
    return value


_MAX_INDEX = 1 << 28  # largest size in bytes of a file beside a shard that lists its records' offsets
_MAX_COUNT = 1 << 40
_NUMBERED = re.compile(r"(.*?)(\d{1,7})-of-(\d{1,7})(.*)", re.DOTALL)
_OFFSETS = re.compile(rb"\d{1,18}[ \t]+\d{1,18}")  # line of an index file of record offsets


def names_beside(location: Location) -> frozenset[str]:
    """Return the names of the files in a folder, or beside a file or pattern; none if the folder is unreadable."""
    try:
        folder = location if location.is_folder() else location.parent
        return frozenset(entry.name for entry in visible_entries(folder) if not entry.is_folder)
    except PicstoreError:
        return frozenset()


def stated_counts(folder: Location) -> dict[str, int]:
    """Return the number of samples of each tar in a folder, by file name, from the folder's index files.

    The index files are ``sizes.json`` of OpenCLIP, ``wids-meta.json`` and ``index.json`` of webdataset's wids, and
    ``.nv-meta/.info.json`` of Megatron Energon.
    """
    counts = _read_json(folder / "sizes.json")
    for name in ("index.json", "wids-meta.json"):
        shards = _read_json(folder / name).get("shardlist")
        for shard in shards if isinstance(shards, list) else ():
            if isinstance(shard, dict) and isinstance(shard.get("url"), str):
                counts[shard["url"].rpartition("/")[2]] = shard.get("nsamples")
    energon = _read_json(folder / ".nv-meta" / ".info.json").get("shard_counts")
    counts |= energon if isinstance(energon, dict) else {}
    tars = {name: count for name, count in counts.items() if name.endswith(".tar") and not {"/", "\0"} & set(name)}
    return {name: count for name, count in tars.items() if _is_count(count)}


def index_of_tar(tar: Location, names: frozenset[str]) -> Location | None:
    """Return the file that states x.tar's number of samples: img2dataset's ``x_stats.json`` or DALI's ``x.idx``."""
    stem = tar.name.removesuffix(".tar")
    return next((tar.parent / name for name in (f"{stem}_stats.json", f"{stem}.idx") if name in names), None)


def read_count(index: Location) -> int | None:
    """Return the number of samples that a file found by :func:`index_of_tar` states; None if it states no number."""
    if index.name.endswith(".json"):
        count = _read_json(index).get("successes")
        return count if _is_count(count) else None
    version, _, number = _read(index).partition(b"\n")[0].partition(b" ")
    return int(number) if version in (b"v1.1", b"v1.2") and number.strip().isdigit() and len(number) < 13 else None


def read_offsets(file: Location, names: frozenset[str], *, column: int) -> list[int] | None:
    """Return the sorted offsets of a file's records from its index; None if the file has no index.

    The index of ``x.rec`` is ``x.idx``, ``x.index``, ``x.rec.idx`` or ``x.rec.index``; ``names`` are the names in the
    folder. Each line has two integers, with the offset in ``column``: 1 for MXNet (``key offset``), 0 for DALI and the
    package tfrecord (``offset size``).
    """
    stem = file.name.rpartition(".")[0] or file.name
    found = [
        name for name in (f"{stem}.idx", f"{stem}.index", f"{file.name}.idx", f"{file.name}.index") if name in names
    ]
    for name in found:
        lines = [line.strip() for line in _read(file.parent / name).splitlines() if line.strip()]
        if lines and all(map(_OFFSETS.fullmatch, lines)):
            return sorted(int(line.split()[column]) for line in lines)
    return None


def indexed_samples(
    location: Location,
    files: Sequence[Location],
    reader: Callable[[SourceFile], ReadRecord],
    *,
    column: int,
    empty: list[str],
) -> Iterator[SourceSample]:
    """Yield the samples of record files in order. If a file has an index, reading continues after a damaged record.

    Args:
        location: the source, which has the indexes beside its files.
        reader: function that takes an open file and returns the function that reads the file's records.
        column: position of the offset in a line of an index, 0 or 1.
        empty: list that gets the names of files without records.
    """
    names = names_beside(location)
    for file in files:
        offsets = read_offsets(file, names, column=column)
        count = None if offsets is None else len(offsets)
        yield from end_at_damage(_records(file, offsets, reader, empty), file, count=count, may_be_empty=True)


def _records(
    location: Location, offsets: Sequence[int] | None, reader: Callable[[SourceFile], ReadRecord], empty: list[str]
) -> Iterator[SourceSample]:
    with SourceFile(location) as file:
        if not file.size:
            empty.append(printable(file.name))
        read, offset, number = reader(file), 0, 0
        while offset < file.size:
            name = printable(f"{file.name}/{number}")
            try:
                sample, following = read(offset, name)
            except Damage as error:
                if offsets is None or number + 1 >= len(offsets) or offsets[number] != offset:
                    raise
                sample, following = SourceSample(name, file.path, problem=describe_damage(error)), offsets[number + 1]
            yield sample
            offset = following
            number += 1


def missing_shards(names: Iterable[str]) -> Iterator[str]:
    """Yield a message for the user for each incomplete set of numbered shards, such as ``train-00003-of-00128.tar``."""
    found: dict[tuple[str, str, str], set[str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            prefix, number, total, suffix = match.groups()
            found.setdefault((prefix, total, suffix), set()).add(number)
    for (prefix, total, suffix), numbers in found.items():
        if len(numbers) >= int(total):
            continue
        # A shard with the number ``total`` shows that the shards are numbered from 1, as some tools do.
        first = 1 if total in numbers else 0
        absent = next(k for k in range(first, int(total) + 1) if f"{k:0{len(total)}}" not in numbers)
        example = printable(f"{prefix}{absent:0{len(total)}}-of-{total}{suffix}")
        yield f"{int(total) - len(numbers):,} of {int(total):,} numbered shards are not there, such as {example}"


def empty_files(names: Sequence[str]) -> Iterator[str]:
    """Yield a message on the files without records, ``names``; iterate only after the listing has filled the list."""
    if names:
        files = "1 file holds" if len(names) == 1 else f"{len(names):,} files hold"
        yield f"{files} no records, such as {names[0]}"


def _read(file: Location) -> bytes:
    try:
        return read_whole(file, _MAX_INDEX) if file.is_file() else b""
    except PicstoreError:
        return b""


def _read_json(file: Location) -> dict[str, Any]:
    return json_object(_read(file)) or {}


def _is_count(count: object) -> TypeGuard[int]:
    return type(count) is int and 0 <= count < _MAX_COUNT
