"""MosaicML's MDS as a source: a folder with index.json and shards of samples, each a row of encoded columns.

A shard is count (u32), count + 1 offsets (u32), the shard's description as JSON, and the samples. A sample is the sizes
(u32) of columns without a fixed size, then the values of all columns, sorted by column name.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.errors import Corrupt, Damage, UsageError, counted
from picstore.prepare.sources.compressed_and_raw import (
    CODECS,
    CompressedBlock,
    DecompressedBlock,
    decompress_block,
    reader_in_block,
)
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import LabelFields, take_label
from picstore.prepare.sources.lenient_json import MAX_DIGITS, json_value
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import end_at_damage, or_damaged
from picstore.prepare.sources.metadata import SkippedFields, decode_text
from picstore.prepare.sources.samples import SourceSample, choose_image
from picstore.prepare.sources.shard_files import checked_count, listed_file, read_index
from picstore.prepare.sources.source_file import SourceFile, file_version, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.prepare.sources.splits import choose_split
from picstore.storage.location.resolve import Location

_IMAGES = ("jpeg", "png", "pil", "bytes")
_NUMBERS = {
    "int": "<i8",
    **{f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_EXTRA = "extra"
_TEXTS = ("str", "str_int", "str_float", "str_decimal", "json")


@dataclass(frozen=True, slots=True)
class _Shard:
    """Shard of a MosaicML dataset, as ``index.json`` describes it.

    Attributes:
        columns: name, encoding and fixed size in bytes of each column; size 0 if the size varies.
        block: the whole file as a block to decompress; None if the file is not compressed.
    """

    file: Location
    name: str
    samples: int
    columns: tuple[tuple[str, str, int], ...]
    block: CompressedBlock | None


def list_mds(
    location: Location, *, image_field: str | None = None, label_field: str | None = None, split: str | None = None
) -> Listing:
    """List every sample of a MosaicML dataset in the order of its index.

    Integers, floats, strings and JSON, except the label, become the extra; so do the members of an object in the column
    ``extra``. Further columns of bytes become attachments; arrays and pickles are left out. Shards may be compressed by
    zstd, gz or bz2.
    """
    shards = [_shard(location, entry) for entry in read_index(location, "shards")["shards"]]
    shards = choose_split(shards, lambda shard: str(shard.file)[len(str(location)) :], split, location)
    skipped, labels = SkippedFields(), LabelFields(label_field, location)
    samples: list[Iterator[SourceSample]] = []
    for shard in shards:
        encodings = {name: encoding for name, encoding, _ in shard.columns}
        images = [name for name, encoding in encodings.items() if encoding in _IMAGES]
        image = choose_image(image_field, images, location)
        label = labels.choose(encodings)
        samples.append(_samples(shard, str(image), label, skipped))
    found = (one for some in samples for one in some)
    return ListingBuilder(found).build("mds", where=location, remarks=skipped.remarks(), labels=labels)


def _shard(folder: Location, entry: dict[str, Any]) -> _Shard:
    index = folder / "index.json"
    kind, version = entry.get("format"), entry.get("version")
    if (kind, version) != ("mds", 2):
        raise UsageError(f"{index}: shards of format {kind!r}, version {version!r}; write version 2 of mds")
    names, encodings, sizes = (entry.get(f"column_{what}") for what in ("names", "encodings", "sizes"))
    if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
        raise UsageError(f"{index}: a shard has no columns; it needs column_names, column_encodings and column_sizes")
    columns = tuple(
        (str(n), str(e), checked_count(s or 0, index)) for n, e, s in zip(names, encodings, sizes, strict=False)
    )
    if len({name for name, _, _ in columns}) < len(columns):
        raise UsageError(f"{index}: two columns of one name in {', '.join(map(str, names))}; rename one")
    samples, raw = checked_count(entry.get("samples"), index), entry.get("raw_data")
    raw = raw if isinstance(raw, dict) else {}
    plain = listed_file(folder, raw.get("basename"))
    packed = entry.get("zip_data")
    if not isinstance(packed, dict) or plain.is_file():
        return _Shard(plain, str(raw.get("basename")), samples, columns, None)
    codec = str(entry.get("compression")).partition(":")[0]
    if codec not in CODECS:
        raise UsageError(f"{index}: shards are compressed by {codec}; {', '.join(CODECS)} are read. Unpack them first")
    block = CompressedBlock(codec, 0, checked_count(packed.get("bytes"), index), checked_count(raw.get("bytes"), index))
    name = packed.get("basename")
    return _Shard(listed_file(folder, name), str(name), samples, columns, block)


def _samples(shard: _Shard, image: str, label: str | None, skipped: SkippedFields) -> Iterator[SourceSample]:
    # Ask for the file's version only once per shard, because an object store takes 20 ms to answer.
    version = file_version(shard.file)

    def found() -> Iterator[SourceSample]:
        if shard.block is None:
            with SourceFile(shard.file) as file:
                yield from _read_samples(file, shard, image, label, skipped)
        else:
            plain = decompress_block(str(shard.file), shard.block, version)
            yield from _read_samples(plain, shard, image, label, skipped)

    yield from end_at_damage(found(), shard.file, printable(shard.name), count=shard.samples, version=version)


def _read_samples(
    file: SourceFile | DecompressedBlock, shard: _Shard, image: str, label: str | None, skipped: SkippedFields
) -> Iterator[SourceSample]:
    (count,) = struct.unpack("<I", file.read(0, 4))
    if count != shard.samples:
        raise Corrupt(f"{counted(count, 'sample')} where the index has {shard.samples:,}", file.printable_path)
    ends = np.frombuffer(file.read(4, 4 * (count + 1)), "<u4").tolist()
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        name = printable(f"{shard.name}/{number}")
        yield or_damaged(_sample, name, file.path, file, shard, name, (start, end), image, label, skipped)


def _sample(
    file: SourceFile | DecompressedBlock,
    shard: _Shard,
    sample_name: str,
    span: tuple[int, int],
    image: str,
    label: str | None,
    skipped: SkippedFields,
) -> SourceSample:
    position, end = span
    variable = [name for name, _, size in shard.columns if not size]
    found = struct.unpack(f"<{len(variable)}I", file.read(position, 4 * len(variable)))
    sizes = dict(zip(variable, found, strict=True))
    position += 4 * len(variable)
    sample = SourceSample(sample_name, file.path)
    for name, encoding, fixed in shard.columns:
        size = fixed or sizes[name]
        if position + size > end:
            raise Corrupt(f"column {name!r} goes beyond its sample", file.printable_path, position)
        if name == image:
            sample.offset, sample.size = position, size
            sample.reader, sample.key = reader_in_block(encoding, shard.block)
        elif encoding in _NUMBERS or encoding in _TEXTS:
            try:
                sample.extra[name] = _decode(encoding, file.read(position, size), skipped)
            except (ValueError, IndexError) as error:
                what = f"column {printable(name)} (not a value of type {encoding})"
                if name == label:
                    raise Corrupt(what, file.printable_path, position) from error
                skipped[what] += 1
        elif encoding == "bytes":
            if size:
                column, (reader, key) = printable(name), reader_in_block(encoding, shard.block)
                attached = Input(f"{sample.name}/{column}", -1, sample.path, position, size, reader=reader, key=key)
                sample.attachments += ((column, attached),)
        else:
            reason = "a pickle, which could run anything" if encoding == "pkl" else f"of type {encoding}"
            skipped[f"column {printable(name)} ({reason})"] += 1
        position += size
    sample.label = take_label(sample.extra, label)
    if isinstance(sample.extra.get(_EXTRA), dict):
        skipped.merge(sample.extra, sample.extra.pop(_EXTRA))
    return sample


def _decode(encoding: str, data: bytes, skipped: SkippedFields) -> Any:
    """Decode the value of a column; raise ValueError or IndexError if the bytes are not of the column's type."""
    if encoding == "json":
        return json_value(data, skipped)
    if encoding == "str_int":
        return int(data) if len(data) <= MAX_DIGITS else math.inf
    if encoding == "str_float":
        return float(data)
    return decode_text(data) if encoding.startswith("str") else np.frombuffer(data, _NUMBERS[encoding])[0].item()


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a folder whose index.json lists shards."""
    try:
        return "index.json" in probe.files and bool(read_index(probe.location, "shards"))
    except (UsageError, Damage):
        return False


FORMAT = SourceFormat(
    list_mds, options=("image_field", "label_field", "split"), recognizes=recognizes, object_stores=True
)
