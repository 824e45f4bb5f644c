"""LitData as a source: a folder with index.json and chunks of samples, each the flattened leaves of a Python object.

A chunk is count (u32), count + 1 offsets (u32), and the samples. A sample is the size (u32) of each leaf, then the
leaves. zstd may compress the chunk, each sample, or some hundred samples at a time (``LDFZ01``).
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.errors import Corrupt, Damage, UsageError, counted
from picstore.prepare.sources.compressed_and_raw import (
    CompressedBlock,
    DecompressedBlock,
    decompress_block,
    reader_in_block,
)
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.labels import LabelFields, take_label
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import end_at_damage, or_damaged
from picstore.prepare.sources.metadata import SkippedFields, decode_text
from picstore.prepare.sources.samples import SourceSample, choose_image
from picstore.prepare.sources.shard_files import checked_count, listed_file, read_index
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.format.zstd import ZstdError, get_frame_info
from picstore.storage.location.resolve import Location

# Serializers of fields that can hold the image; a format may follow the serializer's name, as in ``image:png``.
_IMAGES = ("jpeg", "image", "file", "bytes", "pil")
_NUMBERS = {"int": "<q", "float": "<d", "bool": "<?"}
_FRAMED = b"LDFZ01\0\0"
_ARROW = b"LDARW01\0"
# Header of a chunk of compressed frames: magic, version, flags, number of samples, samples per frame, number of frames.
_FRAMED_HEADER = struct.Struct("<8sHHIII")
_FRAME = np.dtype(
    [("first", "<u4"), ("count", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("decompressed_size", "<u4")]
)
# Magic number of zstd. It is checked because LitData 0.2.76 leaves some samples uncompressed, whatever the index says.
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Fields of a dataset's samples: (name, serializer) of each field, and the names of the image and label fields."""

    fields: tuple[tuple[str, str], ...]
    image: str
    label: str | None
    skipped: SkippedFields


@dataclass(frozen=True, slots=True)
class _Stored:
    """Location of a sample: bytes ``start`` to ``end`` of ``file``, or of the data decompressed from ``block``."""

    file: SourceFile | DecompressedBlock
    start: int
    end: int
    block: CompressedBlock | None = None


def list_litdata(location: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """List every sample of a LitData dataset in the order of its index.

    A field's name is its key in a dictionary, or its position 0, 1, … in a tuple. Numbers and strings, except the
    label, become the extra; all other fields are left out.
    """
    index = read_index(location, "chunks")
    config = index["config"] if isinstance(index.get("config"), dict) else {}
    formats = config.get("data_format")
    loader = config.get("item_loader", "PyTreeLoader")
    if config.get("encryption") or not isinstance(formats, list) or loader != "PyTreeLoader":
        raise UsageError(f"{location}: its chunks cannot be read; write them with litdata.optimize, not encrypted")
    fields = tuple(zip(_names(config.get("data_spec"), len(formats)), map(str, formats), strict=True))
    images = [name for name, kind in fields if kind.partition(":")[0] in _IMAGES]
    if not images and any(kind == "pickle" for _, kind in fields):
        what = "its samples are pickles, which could run anything; write images as bytes or PIL images"
        raise UsageError(f"{location}: {what}")
    image = choose_image(image_field, images, location)
    labels = LabelFields(label_field, location)
    # A tuple's fields are called 0, 1, …, so no usual name tells the label: take the only integer among them.
    integers = [name for name, kind in fields if kind == "int" and fields[0][0] == "0"]
    label = labels.choose([name for name, _ in fields], only=integers)
    layout = _Layout(fields, image, label, SkippedFields())
    level = config.get("compression_level") or "chunk"
    samples = (
        sample
        for entry in index["chunks"]
        for file in [listed_file(location, entry.get("filename"))]
        for count in [checked_count(entry.get("chunk_size"), file)]
        for sample in end_at_damage(
            _samples(file, entry, count, str(config.get("compression") or ""), level, layout), file, count=count
        )
    )
    return ListingBuilder(samples).build("litdata", where=location, remarks=layout.skipped.remarks(), labels=labels)


def _names(spec: Any, count: int) -> list[str]:
    """Return the names of a sample's fields: keys, if torch's ``spec`` describes a flat dictionary, else 0, 1, …."""
    try:
        _, tree = json.loads(spec)
        names = json.loads(tree["context"]) if tree["type"].endswith("dict") else []
        if len(names) == count and all(child["type"] is None for child in tree["children_spec"]):
            return [str(name) for name in names]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return [str(number) for number in range(count)]


def _samples(
    location: Location, entry: dict[str, Any], count: int, compression: str, level: str, layout: _Layout
) -> Iterator[SourceSample]:
    with SourceFile(location) as file:
        if compression and not compression.startswith("zstd"):
            raise Corrupt(f"compressed by {compression}; zstd can be read", file.printable_path)
        stored = _stored_samples(file, entry, level if compression else "", count)
        for number, one in enumerate(stored):
            name = printable(f"{file.name}/{number}")
            yield or_damaged(_sample, name, file.path, name, one, layout)


def _stored_samples(file: SourceFile, entry: dict[str, Any], level: str, count: int) -> Iterator[_Stored | Damage]:
    """Yield the location of each sample of a chunk; for a damaged sample or frame, yield the Damage instead."""
    if file.size >= len(_ARROW) and file.read(file.size - len(_ARROW), len(_ARROW)) == _ARROW:
        raise Corrupt(
            "its samples are rows of an Arrow table, which only LitData reads; write them with picstore.Writer",
            file.printable_path,
        )
    if level == "batch" and file.read(0, len(_FRAMED)) == _FRAMED:
        yield from _framed_samples(file, count)
        return
    plain: SourceFile | DecompressedBlock = file
    block = None
    if level == "chunk":
        block = CompressedBlock("zstd", 0, file.size, checked_count(entry.get("chunk_bytes"), file.printable_path))
        plain = decompress_block(file.path, block, file.version)
    if int.from_bytes(plain.read(0, 4), "little") != count:
        raise Corrupt(f"not the {counted(count, 'sample')} that the index has", file.printable_path)
    ends = np.frombuffer(plain.read(4, 4 * (count + 1)), "<u4").tolist()
    for start, end in itertools.pairwise(ends):
        is_inside = level == "sample" and 0 < start <= end - len(_ZSTD) <= file.size - len(_ZSTD)
        if is_inside and file.read(start, len(_ZSTD)) == _ZSTD:
            try:
                inner = CompressedBlock("zstd", start, end - start, _decompressed_size(file, start, end))
                yield _Stored(decompress_block(file.path, inner, file.version), 0, inner.decompressed_size, inner)
            except Damage as error:
                yield error
        else:
            yield _Stored(plain, start, end, block)


def _decompressed_size(file: SourceFile, start: int, end: int) -> int:
    try:
        size = get_frame_info(file.read(start, end - start)).decompressed_size
    except ZstdError as error:
        raise Corrupt(f"not a zstd frame: {error}", file.printable_path, start) from error
    if size is None:
        raise Corrupt("a zstd frame that does not say its size", file.printable_path, start)
    return size


def _framed_samples(file: SourceFile, count: int) -> Iterator[_Stored | Damage]:
    _, version, _, samples, _, frames = _FRAMED_HEADER.unpack(file.read(0, _FRAMED_HEADER.size))
    if version != 1 or samples != count:
        what = f"version {version}, {samples:,} samples; version 1 and {count:,} are expected"
        raise Corrupt(what, file.printable_path)
    start = _FRAMED_HEADER.size
    ends: Sequence[int] = np.frombuffer(file.read(start, 4 * (count + 1)), "<u4").tolist()
    start += 4 * (count + 1)
    table = np.frombuffer(file.read(start, _FRAME.itemsize * frames), _FRAME)
    if int(table["size"].sum(dtype=np.uint64)) > file.size or int(table["count"].sum(dtype=np.uint64)) > count:
        raise Corrupt("frames of samples that overlap", file.printable_path, start)
    for first, held, offset, size, decompressed_size in table.tolist():
        if first + held > count:
            raise Corrupt("a frame of samples beyond the last", file.printable_path, offset)
        block = CompressedBlock("zstd", offset, size, decompressed_size)
        try:
            plain = decompress_block(file.path, block, file.version)
        except Damage as error:
            yield from [error] * held
            continue
        for k in range(first, first + held):
            yield _Stored(plain, ends[k] - ends[first], ends[k + 1] - ends[first], block)


def _sample(sample_name: str, stored: _Stored | Damage, layout: _Layout) -> SourceSample:
    if isinstance(stored, Damage):
        raise stored
    file, position = stored.file, stored.start + 4 * len(layout.fields)
    sizes = struct.unpack(f"<{len(layout.fields)}I", file.read(stored.start, 4 * len(layout.fields)))
    sample = SourceSample(sample_name, file.path)
    for (name, kind), size in zip(layout.fields, sizes, strict=True):
        if position + size > stored.end:
            raise Corrupt(f"field {name!r} goes beyond its sample", file.printable_path, position)
        if name == layout.image:
            sample.offset, sample.size = position, size
            sample.reader, sample.key = reader_in_block(kind, stored.block)
        elif kind in _NUMBERS or kind in ("str", "text"):
            try:
                data = file.read(position, size)
                sample.extra[name] = struct.unpack(_NUMBERS[kind], data)[0] if kind in _NUMBERS else decode_text(data)
            except struct.error as error:
                raise Corrupt(f"field {name!r} is not a value of type {kind}", file.printable_path, position) from error
        else:
            layout.skipped[f"field {printable(name)} (written as {kind})"] += 1
        position += size
    sample.label = take_label(sample.extra, layout.label)
    return sample


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a folder whose index.json lists chunks."""
    try:
        return "index.json" in probe.files and "config" in read_index(probe.location, "chunks")
    except (UsageError, Damage):
        return False


FORMAT = SourceFormat(list_litdata, options=("image_field", "label_field"), recognizes=recognizes, object_stores=True)
