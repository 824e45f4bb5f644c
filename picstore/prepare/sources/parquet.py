"""Parquet files of images (Hugging Face's datasets) as a source; read by pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import Damage, ImageError, TooLarge, UsageError
from picstore.prepare.sources.fields import SkippedFields, choose_image
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.prepare.sources.labels import Label, LabelFields, take_label
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.metadata import decode_text
from picstore.prepare.sources.named_files import named_file
from picstore.prepare.sources.parquet_layout import ParquetPart, find_parquet, parquet_parts
from picstore.prepare.sources.refused_files import describe_foreign
from picstore.prepare.sources.samples import SourceSample, build_listing, describe_damage, end_at_damage
from picstore.prepare.sources.shard_files import missing_shards
from picstore.prepare.sources.source_file import locate_version, printable
from picstore.prepare.sources.source_kinds import HEAD_BYTES, SourceFormat, SourceProbe, missing_library
from picstore.storage.class_names import JoinedNames
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, locate
from picstore.storage.target_forms import OWN

# Of the metadata of files that export writes: the column ``extra`` is a JSON object; and class names as JSON where a
# ClassLabel, which has each name once, cannot hold them.
EXTRA_KEY, CLASSES_KEY = "picstore.extra", "picstore.classes"

_MAGIC = b"PAR1"
_ROWS_PER_READ = 4096
_IMAGES_PER_READ = 16  # read one by one images take 1.5 times as long
_OPEN_COLUMNS = 8  # the image and attachments, which are read in turn
_FREE_ROWS = 1 << 20  # rows that a file may have beyond one for each of its bytes
_ROW = struct.Struct("<QQ")  # row group, and row in it


@dataclass(frozen=True, slots=True)
class _Schema:
    """Columns of a file.

    ``others`` become the extra, and so do the members of ``extra`` if that is JSON; ``attached`` become attachments;
    ``numbers`` are the numbers of the file's classes in the whole source, None if the file states no names.
    """

    image: str
    label: str | None
    others: tuple[str, ...]
    attached: tuple[str, ...]
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
        skipped: columns of bytes that are left out.
    """

    def __init__(self, location: Location, image_field: str | None, label_field: str | None) -> None:
        self.labels = LabelFields(label_field, location)
        self.classes = JoinedNames()
        self.skipped = SkippedFields()
        self._location, self._image_field = location, image_field
        self._lists: set[tuple[str, ...]] = set()  # of class names
        self._unnamed: Location | None = None  # a file of numbers without names

    def choose(self, opened: Any, part: ParquetPart) -> _Schema:
        """Choose the columns of an open file; the names of its folders may hold further columns."""
        import pyarrow as pa

        schema, file = opened.schema_arrow, part.file
        if len(set(schema.names)) < len(schema.names):
            raise UsageError(f"{file}: two columns of one name in {', '.join(schema.names)}; rename one")
        binary = [field.name for field in schema if _is_binary(field.type)]
        structs = [field.name for field in schema if _is_image(field.type)]
        several = [field.name for field in schema if field.name not in structs and _holds_several(field.type)]
        candidates = structs or binary if self._image_field is None else [*structs, *binary]
        image = choose_image(self._image_field, candidates, file)
        of_bytes = [*structs, *binary]
        others = [name for name in schema.names if name not in of_bytes and name not in several]
        others += [name for name in part.columns if name not in schema.names]
        metadata = schema.metadata or {}
        features, json_extra = _features(metadata), EXTRA_KEY.encode() in metadata
        further = [name for name in of_bytes if name != image]
        attached = [name for name in further if json_extra or _is_of_images(opened, name, features.get(name))]
        for name in schema.names:
            if name in several:
                self.skipped[f"column {printable(name)} (several images or bytes in a row)"] += opened.metadata.num_rows
            elif name in further and name not in attached:
                self.skipped[f"binary column {printable(name)}"] += opened.metadata.num_rows
        label = self.labels.choose(others, only=[name for name in others if _classes(features.get(name))])
        names = _classes(features.get(label)) if label else ()
        if label is not None and CLASSES_KEY.encode() in metadata:
            names = tuple(map(str, (json_object(metadata[CLASSES_KEY.encode()]) or {}).get("names", ())))
        if names:
            self._lists.add(names)
        elif label in schema.names and pa.types.is_integer(schema.field(label).type):
            self._unnamed = file
        try:
            numbers = self.classes.add(names) if names else None
        except UsageError as error:
            raise UsageError(f"{file}: {error}") from error
        return _Schema(image, label, tuple(others), tuple(attached), numbers, json_extra)

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
    the file and below its folder. Further columns of images become attachments, and other binary columns are skipped;
    all further columns, and columns in the names of folders (``label=cat``), become the extra.
    """
    _import_parquet()
    parts = parquet_parts(location, split)
    _require_readable([part.file for part in parts])
    columns = _Columns(location, image_field, label_field)
    samples = (
        sample
        for part in parts
        for sample in end_at_damage(_samples(part, columns), part.file, part.name, count=_count_rows(part.file))
    )
    absent = missing_shards(part.name for part in parts) if location.is_folder() else ()
    names, remarks = columns.classes.names, itertools.chain(columns.remarks(), absent)
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


def _open(source: Any) -> Any:
    """Open a Parquet file; reading a page checks its checksum, where the writer stored one."""
    return _import_parquet().ParquetFile(source, page_checksum_verification=True)


def _require_readable(files: list[Location]) -> None:
    """Raise the Damage of the first file if no file can be opened."""
    import pyarrow as pa

    first: Damage | None = None
    for file in files:
        try:
            with _open(_openable(file)) as opened:
                _ = opened.schema_arrow
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # names and texts may be any bytes
            found = Damage(f"not a Parquet file: {error}", printable(str(file)))
            found.__cause__ = error
        except Damage as error:
            found = error
        else:
            return
        first = first or found
    if first is not None:
        raise first


def _is_binary(type_: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


def _is_image(type_: Any) -> bool:
    import pyarrow as pa

    if not pa.types.is_struct(type_):
        return False
    # All bytes may be null, where all paths are given.
    return any(f.name == "bytes" and (_is_binary(f.type) or pa.types.is_null(f.type)) for f in type_)


def _holds_several(type_: Any) -> bool:
    """Whether a value is nested and holds an image's struct, or a list of bytes."""
    import pyarrow as pa

    if not pa.types.is_nested(type_):
        return False
    inner = [type_.field(k).type for k in range(type_.num_fields)]
    is_struct = pa.types.is_struct(type_)
    return any(_is_image(one) or _holds_several(one) or (not is_struct and _is_binary(one)) for one in inner)


def _is_of_images(opened: Any, column: str, feature: Any) -> bool:
    """Whether a column of bytes holds images, by Hugging Face's datasets or by the first bytes of some of its rows."""
    import pyarrow as pa

    kind = feature.get("_type") if isinstance(feature, dict) else None
    if kind in ("Image", "Audio", "Video"):
        return bool(kind == "Image")
    for group in range(opened.num_row_groups):
        try:
            batch = next(opened.iter_batches(_IMAGES_PER_READ, row_groups=[group], columns=[column]), None)
        except (pa.ArrowException, OSError):  # damage, which reading the images tells
            continue
        values = [] if batch is None else [value for value in batch.column(0).to_pylist() if value is not None]
        found = [value.get("bytes") if isinstance(value, dict) else value for value in values]
        if heads := [value[:HEAD_BYTES] for value in found if value]:
            kinds = [describe_foreign(head, "") for head in heads]
            return all(kind is not None and kind.what.startswith("an image") for kind in kinds)
        if any(isinstance(value, dict) and value.get("path") for value in values):
            return True
    return False


def _features(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Columns as Hugging Face's datasets describes them, by name."""
    info = (json_object(metadata.get(b"huggingface", b"{}")) or {}).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _samples(part: ParquetPart, columns: _Columns) -> Iterator[SourceSample]:
    import pyarrow as pa

    path, number = str(part.file), 0  # one object for all inputs
    try:
        with _open(_openable(part.file)) as opened:
            _check_rows(opened, part.file)
            schema = columns.choose(opened, part)
            own = tuple(name for name in schema.others if name in opened.schema_arrow.names)
            above = {name: value for name, value in part.columns.items() if name not in opened.schema_arrow.names}
            for group in range(opened.num_row_groups):
                there = [(name, _present(opened, group, name)) for name in schema.attached]
                for row, values in enumerate(_rows(opened, group, own)):
                    row_name = printable(f"{part.name}/{number}")
                    number += 1
                    if isinstance(values, Damage):
                        yield SourceSample(row_name, path, problem=describe_damage(values))
                        continue
                    where = _ROW.pack(group, row)
                    values |= above
                    if schema.json_extra and isinstance(values.get("extra"), str):
                        _join_extra(values, columns.skipped)
                    key = where + schema.image.encode()
                    targets = OWN if schema.json_extra else ""
                    sample = SourceSample(row_name, path, extra=values, reader=read_parquet, key=key, targets=targets)
                    sample.attachments = tuple(
                        (printable(name), _attached(sample, name, where))
                        for name, is_there in there
                        if is_there is None or is_there[row]
                    )
                    sample.label = schema.take_label(sample.extra, part.file)
                    yield sample
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # names and texts may be any bytes
        raise Damage(f"{error}", printable(path)) from error


def _attached(sample: SourceSample, column: str, where: bytes) -> Input:
    key = where + column.encode()
    return Input(f"{sample.name}/{printable(column)}", -1, sample.path, reader=read_parquet, key=key)


def _join_extra(values: dict[str, Any], skipped: SkippedFields) -> None:
    """Replace the column ``extra`` of an export by the members of its JSON object."""
    inner = json_object(values.pop("extra").encode("utf-8", "surrogateescape"), skipped)
    if inner is None:
        skipped["column extra (not a JSON object)"] += 1
    skipped.merge(values, inner or {})


def _check_rows(opened: Any, file: Location) -> None:
    """Raise TooLarge for more rows than the file's bytes can be worth, before a row is listed.

    Rows of one value take next to no bytes, so a footer may claim 2**40 of them; rows of images do not.
    """
    stated, size = opened.metadata, file.size()
    groups = sum(stated.row_group(group).num_rows for group in range(stated.num_row_groups))
    if max(stated.num_rows, groups) > size + _FREE_ROWS:
        what = f"{max(stated.num_rows, groups):,} rows are said to be in {size:,} bytes"
        raise TooLarge(what, printable(str(file)))


def _present(opened: Any, group: int, column: str) -> list[bool] | None:
    """Whether each row of a row group has a value in a column of bytes; None if all have, by the statistics."""
    import pyarrow as pa

    stated = opened.metadata.row_group(group)
    of_column = [
        stated.column(k)
        for k in range(stated.num_columns)
        if stated.column(k).path_in_schema in (column, f"{column}.bytes")
    ]
    if of_column and all(one.statistics is not None and one.statistics.null_count == 0 for one in of_column):
        return None
    found: list[bool] = []
    try:
        for batch in opened.iter_batches(_IMAGES_PER_READ, row_groups=[group], columns=[column]):
            values = batch.column(0)
            if _is_binary(values.type):
                found += values.is_valid().to_pylist()
            else:
                found += [bool(value and (value.get("bytes") or value.get("path"))) for value in values.to_pylist()]
    except (pa.ArrowException, OSError):  # a damaged page: the images behind it fail when they are read
        pass
    return found + [True] * (stated.num_rows - len(found))


def _count_rows(file: Location) -> int | None:
    """Number of rows that the footer states; None if it is damaged."""
    import pyarrow as pa

    try:
        with _open(_openable(file)) as opened:
            _check_rows(opened, file)
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
        self._file = _open(_openable(locate_version(path, version)))
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
            batch = next(self._batches, None)
            if batch is None:
                raise ImageError(f"row group {group} ends before its row {row}")
            self._batch = batch
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows
        return self._batch.column(0)[row - self._start].as_py()


@functools.lru_cache(_OPEN_COLUMNS)
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
    """Whether it is a Parquet file or a folder of them, also below folders of splits, configurations and columns.

    A folder whose Parquet files hold no images is another kind's: img2dataset writes such files beside its tars.
    """
    if not probe.is_folder:
        return probe.head().startswith(_MAGIC)
    return find_parquet(probe, _may_hold_images)


def _may_hold_images(file: Location, others: bool) -> bool:
    """Whether a Parquet file has a column of images; where that is unknown, unless there are ``others`` that may."""
    try:
        with _open(_openable(file)) as opened:
            return any(_is_image(field.type) or _is_binary(field.type) for field in opened.schema_arrow)
    except Exception:  # not installed, or any error of the library, which listing the source tells
        return not others


FORMAT = SourceFormat(
    list_parquet, options=("image_field", "label_field", "split"), recognizes=recognizes, object_stores=True
)
