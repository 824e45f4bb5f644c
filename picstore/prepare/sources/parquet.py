"""Parquet files with images in them, as Hugging Face's datasets writes them, by pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import Damage, ImageError, UsageError
from picstore.prepare.sources.base import Source, SourceProbe, missing
from picstore.prepare.sources.inputs import Input, Listing, entries_of, printable, read_input
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
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, locate

_MAGIC = b"PAR1"
_ROWS = 4096  # of metadata in memory
_AHEAD = 16  # images in memory; read one by one they take 1.5 times as long
_ROW = struct.Struct("<QQ")  # row group, and row in it


@dataclass(frozen=True, slots=True)
class _Schema:
    """What the first file says of all.

    Attributes:
        image: the column.
        others: columns that become the extra.
        classes: names of the label's classes, where the writer knew them.
    """

    image: str
    label: str | None
    others: tuple[str, ...]
    classes: tuple[str, ...]


def list_parquet(place: Location, *, image_field: str | None = None, label_field: str | None = None) -> Listing:
    """Every row of a file, or of all ``*.parquet`` in a folder and its sub-folders, by sorted path.

    The image is a struct of ``bytes`` and ``path``, or a binary column; where bytes are null the path is read, from
    where the file lies. All other columns become the extra but binary ones, which are left out.

    Raises:
        MissingDependency: pyarrow is not installed.
        UsageError: it cannot be told which column is the image.
    """
    _library()
    files = _files(place)
    left_out = LeftOut()
    schema = _schema(files[0][1], image_field, label_field, left_out)
    samples = (sample for name, file in files for sample in until_damaged(_samples(file, name, schema), file))
    splits = sorted({file.name.partition("-")[0] for _, file in files if "-of-" in file.name})
    remarks = [f"{place} holds the splits {', '.join(splits)}: all of them are taken"] if len(splits) > 1 else []
    remarks += [f"{what}: left out" for what in sorted(left_out)]
    return listing_of("parquet", samples, classes=schema.classes, remarks=remarks)


def _library() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing("pyarrow", "parquet") from error
    return pyarrow.parquet


def _openable(place: Location) -> Any:
    """What pyarrow opens: files by itself, objects by requests for what it reads."""
    return place.path if isinstance(place, Folder) else place.open()


def _files(place: Location) -> list[tuple[str, Location]]:
    """The files by name, relative to the place."""
    if not place.is_folder():
        return [(place.name, place)]
    entries = entries_of(place)
    names = [name for name, _ in entries]
    for folder in (name for name, is_folder in entries if is_folder):
        names += [f"{folder}/{name}" for name, _ in entries_of(place / folder)]
    found = sorted((name for name in names if name.endswith(".parquet")), key=lambda name: name.split("/"))
    if not found:
        raise UsageError(f"{place} holds no files *.parquet")
    return [(name, place / name) for name in found]


def _schema(file: Location, image_field: str | None, label_field: str | None, left_out: LeftOut) -> _Schema:
    import pyarrow as pa

    try:
        with _library().ParquetFile(_openable(file)) as opened:
            schema = opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise Damage(f"not a Parquet file: {error}", printable(str(file))) from error
    binary = [field.name for field in schema if _is_binary(field.type)]
    images = [field.name for field in schema if _is_image(field.type)] or binary
    image = str(choose(image_field, images, IMAGE_FIELDS, what="image", path=file))
    others = [name for name in schema.names if name != image and name not in binary]
    left_out.update(f"binary column {printable(name)}" for name in binary if name != image)
    label = choose(label_field, others, LABEL_FIELDS, what="label", path=file, must=False)
    features = _features(schema.metadata or {})
    if label is None and len(named := [name for name in others if _classes(features.get(name))]) == 1:
        label = named[0]
    return _Schema(image, label, tuple(others), _classes(features.get(label)) if label else ())


def _is_binary(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


def _is_image(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(type_)) and any(f.name == "bytes" and _is_binary(f.type) for f in type_)


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """What datasets wrote of the columns, by name."""
    info = (json_object(metadata.get(b"huggingface", b"{}")) or {}).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _samples(file: Location, name: str, schema: _Schema) -> Iterator[Sample]:
    import pyarrow as pa

    path, number = str(file), 0  # one object for all inputs
    try:
        with _library().ParquetFile(_openable(file)) as opened:
            for group in range(opened.num_row_groups):
                for row, values in enumerate(_rows(opened, group, schema.others)):
                    key = _ROW.pack(group, row) + schema.image.encode()
                    sample = Sample(printable(f"{name}/{number}"), path, extra=values, reader=read_parquet, key=key)
                    sample.label = take_label(sample.extra, schema.label)
                    yield sample
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise Damage(f"{error}", printable(str(file))) from error


def _rows(opened: Any, group: int, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The metadata of a row group's rows."""
    count = opened.metadata.row_group(group).num_rows
    if not columns:
        for _ in range(count):
            yield {}
        return
    for batch in opened.iter_batches(_ROWS, row_groups=[group], columns=list(columns)):
        for row in batch.to_pylist():
            yield {name: _as_json(value) for name, value in row.items() if value is not None}


def _as_json(value: Any) -> Any:
    """A value as JSON has it: dates and decimals as text; bytes and what is not finite as null."""
    if isinstance(value, dict):
        return {str(name): _as_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(inner) for inner in value]
    if isinstance(value, (bytes, type(None))) or (isinstance(value, float) and not -1e308 <= value <= 1e308):
        return None
    return value if isinstance(value, (bool, int, float, str)) else str(value)


class _Opened:
    """A Parquet file while its images are read, nearly always one after the other."""

    def __init__(self, path: str, column: str) -> None:
        self._file = _library().ParquetFile(_openable(locate(path)))
        self._column = column
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._start = self._stop = 0

    def image(self, group: int, row: int) -> Any:
        """The value of the column in a row of a row group."""
        if group != self._group or row < self._start:
            batches = self._file.iter_batches(_AHEAD, row_groups=[group], columns=[self._column])
            self._group, self._batches, self._start, self._stop = group, batches, 0, 0
        while row >= self._stop:
            self._batch = next(self._batches)
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows
        return self._batch.column(0)[row - self._start].as_py()


@functools.lru_cache(1)
def _open(path: str, column: str) -> _Opened:
    return _Opened(path, column)


def read_parquet(source: Input) -> bytes:
    """Reader of a row; the file stays open for the next one."""
    group, row = _ROW.unpack_from(source.key)
    value = _open(source.path, source.key[_ROW.size :].decode()).image(group, row)
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return read_input(Input(source.name, -1, str(locate(source.path).parent / value["path"])))
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ImageError("the row holds no image")
    return value


def looks_like(glance: SourceProbe) -> bool:
    """A Parquet file, or a folder of them, also below ``data`` as on Hugging Face's hub."""
    if not glance.is_folder:
        return glance.head().startswith(_MAGIC)
    return bool(glance.files_ending(".parquet")) or (
        "data" in glance.folders and bool(SourceProbe.at(glance.place / "data").files_ending(".parquet"))
    )


SOURCE = Source(list_parquet, options=("image_field", "label_field"), guess=looks_like, stores=True)
