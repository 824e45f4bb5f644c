"""Parquet files of images (Hugging Face's datasets) as a source; read by pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import Damage, ImageError, UsageError
from picstore.prepare.sources.base import SourceFormat, SourceProbe, missing_library
from picstore.prepare.sources.fields import SkippedFields, choose_image
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.prepare.sources.json_stream import json_object
from picstore.prepare.sources.labels import Label, LabelFields, take_label
from picstore.prepare.sources.metadata import decode_text
from picstore.prepare.sources.named_files import named_file
from picstore.prepare.sources.samples import SourceSample, build_listing, describe_damage, end_at_damage
from picstore.prepare.sources.source_file import locate_version, printable, visible_entries
from picstore.prepare.sources.splits import choose_split
from picstore.storage.class_names import JoinedNames
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, locate
from picstore.storage.target_forms import OWN

# Of the metadata of files that export writes: the column ``extra`` is a JSON object; and class names as JSON where a
# ClassLabel, which has each name once, cannot hold them.
EXTRA_KEY, CLASSES_KEY = "picstore.extra", "picstore.classes"

_MAGIC = b"PAR1"
_ROWS_PER_READ = 4096
_PROBED_FILES = 8  # to tell a folder of images from one of tables
_IMAGES_PER_READ = 16  # read one by one images take 1.5 times as long
_ROW = struct.Struct("<QQ")  # row group, and row in it


@dataclass(frozen=True, slots=True)
class _Schema:
    """Columns of a file.

    ``others`` become the extra, and so do the members of ``extra`` if that is JSON; ``numbers`` are the numbers of the
    file's classes in the whole source, None if the file states no names.
    """

    image: str
    label: str | None
    others: tuple[str, ...]
    numbers: tuple[int, ...] | None
    json_extra: bool = False

    def take_label(self, extra: dict[str, Any], file: Location) -> Label:
        """Remove a row's label and return it, a number as the whole source counts; UsageError if it has no name."""
        label = take_label(extra, self.label)
        if self.numbers is None or not isinstance(label, int) or label == -1:
            return label
        if not 0 <= label < len(self.numbers):
            count = len(self.numbers)
            raise UsageError(f"{file}: the label {label} is outside of its {count:,} classes; give 0 to {count - 1}")
        return self.numbers[label]


class _Columns:
    """Choice of the columns of each file, and what all files have in common.

    Attributes:
        labels: choice of the label's column.
        classes: class names of all files.
        skipped: binary columns that are left out.
    """

    def __init__(self, location: Location, image_field: str | None, label_field: str | None) -> None:
        self.labels = LabelFields(label_field, location)
        self.classes = JoinedNames()
        self.skipped = SkippedFields()
        self._location, self._image_field = location, image_field
        self._lists: set[tuple[str, ...]] = set()  # of class names
        self._unnamed: Location | None = None  # a file of numbers without names

    def choose(self, schema: Any, file: Location) -> _Schema:
        """Choose the columns of a file."""
        import pyarrow as pa

        if len(set(schema.names)) < len(schema.names):
            raise UsageError(f"{file}: two columns of one name in {', '.join(schema.names)}; rename one")
        binary = [field.name for field in schema if _is_binary(field.type)]
        images = [field.name for field in schema if _is_image(field.type)] or binary
        image = choose_image(self._image_field, images, file)
        others = [name for name in schema.names if name != image and name not in binary]
        metadata = schema.metadata or {}
        features = _features(metadata)
        label = self.labels.choose(others, only=[name for name in others if _classes(features.get(name))])
        names = _classes(features.get(label)) if label else ()
        if label is not None and CLASSES_KEY.encode() in metadata:
            names = tuple(map(str, (json_object(metadata[CLASSES_KEY.encode()]) or {}).get("names", ())))
        if names:
            self._lists.add(names)
        elif label is not None and pa.types.is_integer(schema.field(label).type):
            self._unnamed = file
        try:
            numbers = self.classes.add(names) if names else None
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error
        return _Schema(image, label, tuple(others), numbers, EXTRA_KEY.encode() in metadata)

    def remarks(self) -> Iterator[str]:
        """Messages for the user; UsageError if numbers without names could be of different classes."""
        yield from self.skipped.remarks()
        if self._unnamed is None or not self._lists:
            return
        if len(self._lists) > 1:
            raise UsageError(
                f"{self._unnamed} has labels without class names, and other files of {self._location} number different "
                "ones; write the names into the file, or convert it by itself"
            )
        yield f"labels: {self._unnamed} states no class names; its numbers mean the other files' classes"


def list_parquet(
    location: Location, *, image_field: str | None = None, label_field: str | None = None, split: str | None = None
) -> Listing:
    """List every row of a file, or of all ``*.parquet`` in a folder and its sub-folders, by sorted path.

    The image is a struct of ``bytes`` and ``path``, or a binary column; if bytes are null the path is read, relative to
    the file and below its folder. Other binary columns are skipped; all further columns become the extra.
    """
    _import_parquet()
    files = choose_split(_files(location), lambda named: named[0], split, location)
    _read_schema(files[0][1])  # a source whose first file is damaged is refused
    columns = _Columns(location, image_field, label_field)
    samples = (
        sample
        for name, file in files
        for sample in end_at_damage(_samples(file, name, columns), file, name, count=_count_rows(file))
    )
    names, remarks = columns.classes.names, columns.remarks()
    return build_listing("parquet", samples, where=location, classes=names, remarks=remarks, labels=columns.labels)


def _import_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_library("pyarrow", "parquet") from error
    return pyarrow.parquet


def _openable(location: Location) -> Any:
    """Argument for pyarrow: a path, or a file object that requests only the ranges that are read."""
    if not isinstance(location, Folder):
        return location.open()
    if not location.is_file():  # pyarrow would wait for the writer of a pipe
        raise Damage("not a regular file", printable(str(location)))
    return location.path


def _files(location: Location) -> list[tuple[str, Location]]:
    """Files by name, relative to the location."""
    if not location.is_folder():
        return [(location.name, location)]
    entries = visible_entries(location)
    names = [name for name, _ in entries]
    for folder in (name for name, is_folder in entries if is_folder):
        names += [f"{folder}/{name}" for name, _ in visible_entries(location / folder)]
    found = sorted((name for name in names if name.endswith(".parquet")), key=lambda name: name.split("/"))
    if not found:
        raise UsageError(f"{location} holds no files *.parquet; give a folder with some, or a file")
    return [(name, location / name) for name in found]


def _read_schema(file: Location) -> Any:
    import pyarrow as pa

    try:
        with _import_parquet().ParquetFile(_openable(file)) as opened:
            return opened.schema_arrow
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # names and texts may be any bytes
        raise Damage(f"not a Parquet file: {error}", printable(str(file))) from error


def _is_binary(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


def _is_image(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(type_)) and any(f.name == "bytes" and _is_binary(f.type) for f in type_)


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Columns as Hugging Face's datasets describes them, by name."""
    info = (json_object(metadata.get(b"huggingface", b"{}")) or {}).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _samples(file: Location, name: str, columns: _Columns) -> Iterator[SourceSample]:
    import pyarrow as pa

    path, number = str(file), 0  # one object for all inputs
    try:
        with _import_parquet().ParquetFile(_openable(file)) as opened:
            schema, skipped = columns.choose(opened.schema_arrow, file), columns.skipped
            for column in set(opened.schema_arrow.names) - {schema.image, *schema.others}:
                skipped[f"binary column {printable(column)}"] += opened.metadata.num_rows
            for group in range(opened.num_row_groups):
                for row, values in enumerate(_rows(opened, group, schema.others)):
                    row_name = printable(f"{name}/{number}")
                    number += 1
                    if isinstance(values, Damage):
                        yield SourceSample(row_name, path, problem=describe_damage(values))
                        continue
                    key = _ROW.pack(group, row) + schema.image.encode()
                    if schema.json_extra and isinstance(values.get("extra"), str):
                        inner = json_object(values.pop("extra").encode("utf-8", "surrogateescape"), skipped)
                        if inner is None:
                            skipped["column extra (not a JSON object)"] += 1
                        skipped.merge(values, inner or {})
                    targets = OWN if schema.json_extra else ""
                    sample = SourceSample(row_name, path, extra=values, reader=read_parquet, key=key, targets=targets)
                    sample.label = schema.take_label(sample.extra, file)
                    yield sample
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # names and texts may be any bytes
        raise Damage(f"{error}", printable(str(file))) from error


def _count_rows(file: Location) -> int | None:
    """Number of rows that the footer states; None if it is damaged."""
    import pyarrow as pa

    try:
        with _import_parquet().ParquetFile(_openable(file)) as opened:
            return int(opened.metadata.num_rows)
    except (pa.ArrowException, OSError, UnicodeDecodeError, Damage):
        return None


def _rows(opened: Any, group: int, columns: tuple[str, ...]) -> Iterator[dict[str, Any] | Damage]:
    """Rows of a row group without the image, and for each row behind a damaged page the damage."""
    import pyarrow as pa

    count, found = opened.metadata.row_group(group).num_rows, 0
    try:
        for values in _readable_rows(opened, group, columns) if columns else ({} for _ in range(count)):
            found += 1
            yield values
    except (pa.ArrowException, OSError) as error:
        yield from [Damage(f"row group {group}: {error}", "")] * (count - found)


def _readable_rows(opened: Any, group: int, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for batch in opened.iter_batches(_ROWS_PER_READ, row_groups=[group], columns=list(columns)):
        for row in zip(*map(_values, batch.columns), strict=True):
            yield {name: value for name, value in zip(batch.schema.names, row, strict=True) if value is not None}


def _values(column: Any) -> list[Any]:
    """Convert a column to Python's values; one by one if some are not UTF-8, or beyond Python's dates."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # UnicodeDecodeError is a ValueError
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if not scalar.is_valid:
        return None
    if types.is_dictionary(scalar.type):
        return _value(scalar.value)
    if types.is_string(scalar.type) or types.is_large_string(scalar.type) or types.is_string_view(scalar.type):
        return decode_text(scalar.as_buffer().to_pybytes())
    if types.is_struct(scalar.type):
        return {name: _value(scalar[name]) for name in scalar}
    if types.is_nested(scalar.type):
        return [_value(inner) for inner in scalar.values]
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar.cast(pa.string()).as_py()


class _OpenFile:
    """A Parquet file whose images are read, fastest in sequence."""

    def __init__(self, path: str, column: str, version: str) -> None:
        self._file = _import_parquet().ParquetFile(_openable(locate_version(path, version)))
        self._column = column
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._start = self._stop = 0

    def image(self, group: int, row: int) -> Any:
        """Value of the column in a row of a row group."""
        if group != self._group or row < self._start:
            batches = self._file.iter_batches(_IMAGES_PER_READ, row_groups=[group], columns=[self._column])
            self._group, self._batches, self._start, self._stop = group, batches, 0, 0
        while row >= self._stop:
            self._batch = next(self._batches)
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows
        return self._batch.column(0)[row - self._start].as_py()


@functools.lru_cache(1)
def _open_file(path: str, column: str, version: str) -> _OpenFile:
    return _OpenFile(path, column, version)


def read_parquet(source: Input) -> bytes:
    """Reader of a row: ``key`` is row group, row and column. The file stays open for the next one."""
    group, row = _ROW.unpack_from(source.key)
    value = _open_file(source.path, source.key[_ROW.size :].decode(), source.version).image(group, row)
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return read_input(Input(source.name, -1, str(named_file(locate(source.path).parent, value["path"]))))
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ImageError("the row holds no image")
    return value


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a Parquet file or a folder of them, also below ``data`` as on Hugging Face's hub.

    A folder whose Parquet files hold no images is another kind's: img2dataset writes such files beside its tars.
    """
    if not probe.is_folder:
        return probe.head().startswith(_MAGIC)
    if not (names := probe.files_ending(".parquet")) and "data" in probe.folders:
        probe = SourceProbe.inspect(probe.location / "data")
        names = probe.files_ending(".parquet")
    others = bool(probe.files_ending(".tar"))
    return any(_may_hold_images(probe.location / name, others) for name in names[:_PROBED_FILES])


def _may_hold_images(file: Location, others: bool) -> bool:
    """Whether a Parquet file has a column of images; where that is unknown, unless there are ``others`` that may."""
    try:
        pyarrow_parquet = _import_parquet()
        with pyarrow_parquet.ParquetFile(_openable(file)) as opened:
            return any(_is_image(field.type) or _is_binary(field.type) for field in opened.schema_arrow)
    except Exception:  # not installed, or any error of the library, which listing the source tells
        return not others


FORMAT = SourceFormat(
    list_parquet, options=("image_field", "label_field", "split"), recognizes=recognizes, object_stores=True
)
