"""MosaicML's MDS: a folder with index.json and shards of samples, each a row of encoded columns.

A shard: count u32, count + 1 offsets u32, the shard's description as JSON, the samples. A sample: u32 sizes of the
columns that have no fixed one, then the columns by name.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from picstore.errors import Corrupt, Damage, UsageError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.compressed import CODECS, Block, Plain, decompressed, read_compressed
from picstore.prepare.sources.index_json import plain_name, read_index, whole
from picstore.prepare.sources.inputs import Input, Listing, SourceFile, printable
from picstore.prepare.sources.raw_pixels import read_compressed_pil, read_pil
from picstore.prepare.sources.samples import (
    IMAGE_FIELDS,
    LABEL_FIELDS,
    LeftOut,
    Sample,
    choose,
    json_object,
    listing_of,
    take_label,
    until_damaged,
)
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
    """A shard as the index describes it; ``columns`` are name, encoding and fixed size (0 for none)."""

    place: Location
    samples: int
    columns: tuple[tuple[str, str, int], ...]
    block: Block | None  # where all of it is compressed


def list_mds(place: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """Every sample of every shard in the order of the index.

    Integers, floats, texts and JSON become the extra (an object called ``extra`` is taken apart), or the label; further
    columns of bytes become attachments; arrays and pickles are left out. Shards that are
    compressed by zstd, gz or bz2 are decompressed as they are read; for others there is the library.

    Raises:
        NotADataset, UsageError: there is no index, or not of MDS.
    """
    shards = [_shard(place, entry) for entry in read_index(place, "shards")["shards"]]
    left_out = LeftOut()
    samples: list[Iterator[Sample]] = []
    for shard in shards:
        encodings = {name: encoding for name, encoding, _ in shard.columns}
        images = [name for name, encoding in encodings.items() if encoding in _IMAGES]
        image = choose(image_field, images, IMAGE_FIELDS, what="image", path=place)
        label = choose(label_field, encodings, LABEL_FIELDS, what="label", path=place, must=False)
        samples.append(until_damaged(_samples(shard, str(image), label, left_out), shard.place))
    return listing_of("mds", (one for some in samples for one in some), remarks=left_out.remarks())


def _shard(folder: Location, entry: dict[str, Any]) -> _Shard:
    place = folder / "index.json"
    kind, version = entry.get("format"), entry.get("version")
    if (kind, version) != ("mds", 2):
        raise UsageError(f"{place}: shards of format {kind!r}, version {version!r}; version 2 of mds is read")
    names, encodings, sizes = (entry.get(f"column_{what}") for what in ("names", "encodings", "sizes"))
    if not (isinstance(names, list) and isinstance(encodings, list) and isinstance(sizes, list)):
        raise UsageError(f"{place}: a shard without columns")
    columns = tuple((str(n), str(e), whole(s or 0, place)) for n, e, s in zip(names, encodings, sizes, strict=False))
    samples, raw = whole(entry.get("samples"), place), entry.get("raw_data") or {}
    plain = folder / plain_name(raw.get("basename"), place)
    packed = entry.get("zip_data")
    if not isinstance(packed, dict) or plain.is_file():
        return _Shard(plain, samples, columns, None)
    codec = str(entry.get("compression")).partition(":")[0]
    if codec not in CODECS:
        raise UsageError(f"{place}: shards are compressed by {codec}; {', '.join(CODECS)} are read. Unpack them first")
    block = Block(codec, 0, whole(packed.get("bytes"), place), whole(raw.get("bytes"), place))
    return _Shard(folder / plain_name(packed.get("basename"), place), samples, columns, block)


def _samples(shard: _Shard, image: str, label: str | None, left_out: LeftOut) -> Iterator[Sample]:
    if shard.block is not None:
        yield from _walk(decompressed(str(shard.place), shard.block), shard, image, label, left_out)
        return
    with SourceFile(shard.place) as file:
        yield from _walk(file, shard, image, label, left_out)


def _walk(
    file: SourceFile | Plain, shard: _Shard, image: str, label: str | None, left_out: LeftOut
) -> Iterator[Sample]:
    (count,) = struct.unpack("<I", file.read(0, 4))
    if count != shard.samples:
        raise Corrupt(f"{count:,} samples where the index has {shard.samples:,}", file.place)
    ends = np.frombuffer(file.read(4, 4 * (count + 1)), "<u4").tolist()
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        yield _sample(file, shard, number, (start, end), image, label, left_out)


def _sample(
    file: SourceFile | Plain,
    shard: _Shard,
    number: int,
    span: tuple[int, int],
    image: str,
    label: str | None,
    left_out: LeftOut,
) -> Sample:
    position, end = span
    variable = [name for name, _, size in shard.columns if not size]
    found = struct.unpack(f"<{len(variable)}I", file.read(position, 4 * len(variable)))
    sizes = dict(zip(variable, found, strict=True))
    position += 4 * len(variable)
    sample = Sample(printable(f"{shard.place.name}/{number}"), file.path)
    for name, encoding, fixed in shard.columns:
        size = fixed or sizes[name]
        if position + size > end:
            raise Corrupt(f"column {name!r} goes beyond its sample", file.place, position)
        if name == image:
            sample.offset, sample.size = position, size
            sample.reader = _reader(encoding, shard.block is not None)
            sample.key = shard.block.key() if shard.block else b""
        elif encoding in _NUMBERS or encoding in _TEXTS:
            sample.extra[name] = _decode(encoding, file.read(position, size), file.place, position)
        elif encoding == "bytes":
            if size:
                attached = Input(f"{sample.name}/{printable(name)}", -1, sample.path, position, size)
                sample.attachments += ((printable(name), _compressed(attached, shard.block)),)
        else:
            left_out[f"column {printable(name)} ({_why(encoding)})"] += 1
        position += size
    sample.label = take_label(sample.extra, label)
    if isinstance(sample.extra.get(_EXTRA), dict):
        sample.extra |= sample.extra.pop(_EXTRA)
    return sample


def _compressed(attached: Input, block: Block | None) -> Input:
    return attached if block is None else replace(attached, reader=read_compressed, key=block.key())


def _reader(encoding: str, compressed: bool) -> Any:
    if encoding == "pil":
        return read_compressed_pil if compressed else read_pil
    return read_compressed if compressed else None


def _why(encoding: str) -> str:
    return "a pickle, which could run anything" if encoding == "pkl" else f"of type {encoding}"


def _decode(encoding: str, data: bytes, place: str, at: int) -> Any:
    try:
        if encoding == "json":
            return json_object(b'{"value":%s}' % data)["value"]  # type: ignore[index]
        if encoding in ("str_int", "str_float"):
            return (int if encoding == "str_int" else float)(data.decode("ascii"))
        if encoding.startswith("str"):
            return data.decode("utf-8")
        return np.frombuffer(data, _NUMBERS[encoding])[0].item()
    except (ValueError, TypeError, IndexError) as error:
        raise Corrupt(f"not a value of type {encoding}", place, at) from error


def looks_like(glance: SourceProbe) -> bool:
    """A folder whose index.json has shards."""
    try:
        return "index.json" in glance.files and bool(read_index(glance.place, "shards"))
    except (UsageError, Damage):
        return False


SOURCE = Source(list_mds, options=("image_field", "label_field"), guess=looks_like, stores=True)
