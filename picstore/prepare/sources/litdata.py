"""LitData: a folder with index.json and chunks of samples, each the flattened leaves of a Python object.

A chunk: count u32, count + 1 offsets u32, the samples. A sample: a u32 size for each leaf, then the leaves. zstd may be
around the whole chunk, around each sample, or around some hundred samples at a time (``LDFZ01``).
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from picstore.errors import Corrupt, Damage, UsageError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.compressed import Block, Plain, decompressed, read_compressed
from picstore.prepare.sources.index_json import plain_name, read_index, whole
from picstore.prepare.sources.inputs import Listing, SourceFile, printable
from picstore.prepare.sources.raw_pixels import read_compressed_pil, read_pil
from picstore.prepare.sources.samples import (
    IMAGE_FIELDS,
    LABEL_FIELDS,
    LeftOut,
    Sample,
    choose,
    listing_of,
    take_label,
    until_damaged,
)
from picstore.storage.location.resolve import Location

_IMAGES = ("jpeg", "image", "file", "bytes", "pil")  # what may hold the image; LitData writes image:png
_NUMBERS = {"int": "<q", "float": "<d", "bool": "<?"}
_FRAMED = b"LDFZ01\0\0"
_ARROW = b"LDARW01\0"
_FRAMED_HEAD = struct.Struct("<8sHHIII")  # magic, version, flags, samples, samples a frame, frames
_FRAME = np.dtype([("first", "<u4"), ("count", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("plain", "<u4")])
_ZSTD = b"\x28\xb5\x2f\xfd"  # 0.2.76 leaves samples as they are where its index says they are compressed each
_ZSTD_SIZE_UNKNOWN = 1 << 62


@dataclass(frozen=True, slots=True)
class _Chunks:
    """What all chunks of a data set share.

    Attributes:
        fields: name and serializer of each leaf.
        image, label: which of them.
    """

    fields: tuple[tuple[str, str], ...]
    image: str
    label: str | None
    left_out: LeftOut


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a sample is: ``file`` is read for its leaves, at ``start`` to ``end``; ``block`` is around it."""

    file: SourceFile | Plain
    start: int
    end: int
    block: Block | None = None


def list_litdata(place: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """Every sample of every chunk in the order of the index.

    Fields are named as the keys of the dictionary that was written, or 0, 1, … for a tuple. Numbers and texts become
    the extra, or the label; tensors, pickles and all else are left out.

    Raises:
        NotADataset, UsageError: there is no index, or chunks of a kind that only LitData reads.
    """
    index = read_index(place, "chunks")
    config = index["config"] if isinstance(index.get("config"), dict) else {}
    formats = config.get("data_format")
    if (
        config.get("encryption")
        or not isinstance(formats, list)
        or config.get("item_loader", "PyTreeLoader") != "PyTreeLoader"
    ):
        raise UsageError(f"{place}: chunks that are encrypted, or not written by litdata.optimize, are not read")
    fields = tuple(zip(_names(config.get("data_spec"), len(formats)), map(str, formats), strict=True))
    images = [name for name, kind in fields if kind.partition(":")[0] in _IMAGES]
    if not images and any(kind == "pickle" for _, kind in fields):
        raise UsageError(
            f"{place}: its samples are pickles, which could run anything; write images as bytes or PIL images"
        )
    image = str(choose(image_field, images, IMAGE_FIELDS, what="image", path=place))
    label = choose(label_field, [name for name, _ in fields], LABEL_FIELDS, what="label", path=place, must=False)
    if label is None and [kind for _, kind in fields].count("int") == 1 and fields[0][0] == "0":
        label = next(name for name, kind in fields if kind == "int")  # (image, label)
    chunks = _Chunks(fields, image, label, LeftOut())
    level = config.get("compression_level") or "chunk"
    samples = (
        sample
        for entry in index["chunks"]
        for file in [place / plain_name(entry.get("filename"), place / "index.json")]
        for sample in until_damaged(_samples(file, entry, str(config.get("compression") or ""), level, chunks), file)
    )
    return listing_of("litdata", samples, remarks=chunks.left_out.remarks())


def _names(spec: Any, count: int) -> list[str]:
    """Names of the leaves by the description of the tree that torch writes; numbers where it is no flat dictionary."""
    try:
        _, tree = json.loads(spec)
        names = json.loads(tree["context"]) if tree["type"].endswith("dict") else []
        if len(names) == count and all(child["type"] is None for child in tree["children_spec"]):
            return [str(name) for name in names]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return [str(number) for number in range(count)]


def _samples(place: Location, entry: dict[str, Any], compression: str, level: str, chunks: _Chunks) -> Iterator[Sample]:
    count = whole(entry.get("chunk_size"), place)
    with SourceFile(place) as file:
        if compression and not compression.startswith("zstd"):
            raise Corrupt(f"compressed by {compression}; zstd can be read", file.place)
        stored = _stored(file, entry, level if compression else "", count)
        for number, one in enumerate(stored):
            yield _sample(file.name, number, one, chunks)


def _stored(file: SourceFile, entry: dict[str, Any], level: str, count: int) -> Iterator[_Stored]:
    if file.size >= len(_ARROW) and file.read(file.size - len(_ARROW), len(_ARROW)) == _ARROW:
        raise Corrupt("its samples are rows of an Arrow table, which only LitData reads", file.place)
    if level == "batch" and file.read(0, len(_FRAMED)) == _FRAMED:
        yield from _framed(file, count)
        return
    plain, block = _whole_chunk(file, entry) if level == "chunk" else (file, None)
    if plain.read(0, 4) != struct.pack("<I", count):
        raise Corrupt(f"not the {count:,} samples that the index has", file.place)
    ends = np.frombuffer(plain.read(4, 4 * (count + 1)), "<u4").tolist()
    for start, end in itertools.pairwise(ends):
        if level == "sample" and file.read(start, min(4, end - start)) == _ZSTD:
            inner = Block("zstd", start, end - start, _plain_size(file.read(start, end - start), file.place, start))
            yield _Stored(decompressed(file.path, inner), 0, inner.plain, inner)
        else:
            yield _Stored(plain, start, end, block)


def _whole_chunk(file: SourceFile, entry: dict[str, Any]) -> tuple[Plain, Block]:
    block = Block("zstd", 0, file.size, whole(entry.get("chunk_bytes"), file.place))
    return decompressed(file.path, block), block


def _plain_size(packed: bytes, place: str, at: int) -> int:
    try:
        size = zstandard.frame_content_size(packed)
    except zstandard.ZstdError as error:
        raise Corrupt(f"no zstd frame: {error}", place, at) from error
    if not 0 <= size < _ZSTD_SIZE_UNKNOWN:
        raise Corrupt("a zstd frame that does not say its size", place, at)
    return size


def _framed(file: SourceFile, count: int) -> Iterator[_Stored]:
    _, version, _, samples, _, frames = _FRAMED_HEAD.unpack(file.read(0, _FRAMED_HEAD.size))
    if version != 1 or samples != count:
        raise Corrupt(f"version {version}, {samples:,} samples; version 1 and {count:,} are expected", file.place)
    at = _FRAMED_HEAD.size
    ends: Sequence[int] = np.frombuffer(file.read(at, 4 * (count + 1)), "<u4").tolist()
    at += 4 * (count + 1)
    for first, held, offset, size, plain in np.frombuffer(file.read(at, _FRAME.itemsize * frames), _FRAME).tolist():
        if first + held > count:
            raise Corrupt("a frame of samples that there are not", file.place, offset)
        block = Block("zstd", offset, size, plain)
        for k in range(first, first + held):
            start, end = ends[k] - ends[first], ends[k + 1] - ends[first]
            yield _Stored(decompressed(file.path, block), start, end, block)


def _sample(name_of_chunk: str, number: int, stored: _Stored, chunks: _Chunks) -> Sample:
    file, position = stored.file, stored.start + 4 * len(chunks.fields)
    sizes = struct.unpack(f"<{len(chunks.fields)}I", file.read(stored.start, 4 * len(chunks.fields)))
    sample = Sample(printable(f"{name_of_chunk}/{number}"), file.path)
    for (name, kind), size in zip(chunks.fields, sizes, strict=True):
        if position + size > stored.end:
            raise Corrupt(f"field {name!r} goes beyond its sample", file.place, position)
        if name == chunks.image:
            _place_image(sample, kind, position, size, stored.block)
        elif kind in _NUMBERS or kind in ("str", "text"):
            sample.extra[name] = _decode(kind, file.read(position, size), file.place, position)
        else:
            chunks.left_out[f"field {printable(name)} (written as {kind})"] += 1
        position += size
    sample.label = take_label(sample.extra, chunks.label)
    return sample


def _place_image(sample: Sample, kind: str, offset: int, size: int, block: Block | None) -> None:
    sample.offset, sample.size = offset, size
    if kind == "pil":
        sample.reader = read_pil if block is None else read_compressed_pil
    elif block is not None:
        sample.reader = read_compressed
    sample.key = b"" if block is None else block.key()


def _decode(kind: str, data: bytes, place: str, at: int) -> Any:
    try:
        return struct.unpack(_NUMBERS[kind], data)[0] if kind in _NUMBERS else data.decode("utf-8")
    except (struct.error, ValueError) as error:
        raise Corrupt(f"not a value of type {kind}", place, at) from error


def looks_like(glance: SourceProbe) -> bool:
    """A folder whose index.json has chunks."""
    try:
        return "index.json" in glance.files and "config" in read_index(glance.place, "chunks")
    except (UsageError, Damage):
        return False


SOURCE = Source(list_litdata, options=("image_field", "label_field"), guess=looks_like, stores=True)
