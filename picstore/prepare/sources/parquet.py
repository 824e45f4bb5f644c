"""Parquet files of images, as Hugging Face's datasets writes them, as a source; pyarrow reads rows and images."""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from picstore.errors import Damage, ImageError, TooLarge
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import describe_damage, end_at_damage
from picstore.prepare.sources.metadata import SkippedFields, decode_text
from picstore.prepare.sources.parquet_layout import (
    IMAGES_PER_READ,
    ColumnChoice,
    ParquetPart,
    holds_images,
    import_parquet,
    open_parquet,
    parquet_parts,
)
from picstore.prepare.sources.parquet_tensors import is_tensor, tensor_to_npy
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.shard_files import missing_shards
from picstore.prepare.sources.source_file import locate_version, named_file, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.annotations import OWN
from picstore.storage.location.resolve import Location, locate

_MAGIC = b"PAR1"
_ROWS_PER_READ = 4096
_OPEN_COLUMNS = 8  # number of open columns to cache, because a row's image and attachments are read in turn
# A file of n bytes that states more than n + _FREE_ROWS rows is rejected as implausible.
_FREE_ROWS = 1 << 20
_ROW = struct.Struct("<QQ")  # start of an input's ``key``: index of the row group, and index of the row in the group


def list_parquet(
    location: Location,
    *,
    image_field: str | None = None,
    label_field: str | None = None,
    split: str | None = None,
    maps: Sequence[str] = (),
) -> Listing:
    """List every row of a Parquet file, or of all ``*.parquet`` below a folder, by sorted path.

    The image is a binary column, or a struct of ``bytes`` and ``path``. If ``bytes`` is null, the image is read from
    ``path``, relative to the Parquet file's folder. Further columns of images become attachments, and so do the columns
    in ``maps``, which may be binary, nested lists of numbers, or tensors of a fixed shape. Other binary columns are
    skipped. All remaining columns, also those in names of folders (``label=cat``), become the extra.
    """
    import_parquet()
    parts = parquet_parts(location, split)
    _require_readable([part.file for part in parts])
    columns = ColumnChoice(location, image_field, label_field, maps)
    samples = (
        sample
        for part in parts
        for sample in end_at_damage(_samples(part, columns), part.file, part.name, count=_count_rows(part.file))
    )
    absent = missing_shards(part.name for part in parts) if location.is_folder() else ()
    names, remarks = columns.classes.names, itertools.chain(columns.remarks(), absent)
    return ListingBuilder(samples).build(
        "parquet", where=location, classes=names, remarks=remarks, labels=columns.labels
    )


def _require_readable(files: list[Location]) -> None:
    first: Damage | None = None
    for file in files:
        damage = _damage_of_schema(file)
        if damage is None:
            return
        first = first or damage
    if first is not None:
        raise first


def _damage_of_schema(file: Location) -> Damage | None:
    try:
        with _errors_as_damage(file, "not a Parquet file: "), open_parquet(file) as opened:
            _ = opened.schema_arrow
    except Damage as error:
        return error
    return None


@contextlib.contextmanager
def _errors_as_damage(file: Location, prefix: str = "") -> Iterator[None]:
    """Replace pyarrow's errors, and UnicodeDecodeError for names and strings that are not UTF-8, by Damage."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Damage(f"{prefix}{error}", printable(str(file))) from error


def _samples(part: ParquetPart, columns: ColumnChoice) -> Iterator[SourceSample]:
    # Convert the path to a string only once, so that all inputs share it, which saves memory.
    path, number = str(part.file), 0
    with _errors_as_damage(part.file), open_parquet(part.file) as opened:
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
                present = [name for name, is_there in there if is_there is None or is_there[row]]
                sample.attachments = tuple((printable(name), _attached(sample, name, where)) for name in present)
                sample.label = schema.take_label(sample.extra, part.file)
                yield sample


def _attached(sample: SourceSample, column: str, where: bytes) -> Input:
    key = where + column.encode()
    return Input(f"{sample.name}/{printable(column)}", -1, sample.path, reader=read_parquet, key=key)


def _join_extra(values: dict[str, Any], skipped: SkippedFields) -> None:
    """Replace the value of ``extra``, a JSON object that `picstore export` wrote, by the members of the object."""
    inner = json_object(values.pop("extra").encode("utf-8", "surrogateescape"), skipped)
    if inner is None:
        skipped["column extra (not a JSON object)"] += 1
    skipped.merge(values, inner or {})


def _check_rows(opened: Any, file: Location) -> None:
    """Raise TooLarge if a file states more rows than images fit into its size.

    Rows of a constant value take almost no bytes, so a small file may state 2**40 rows.
    """
    stated, size = opened.metadata, file.size()
    groups = sum(stated.row_group(group).num_rows for group in range(stated.num_row_groups))
    if max(stated.num_rows, groups) > size + _FREE_ROWS:
        what = f"{max(stated.num_rows, groups):,} rows are said to be in {size:,} bytes"
        raise TooLarge(what, printable(str(file)))


def _present(opened: Any, group: int, column: str) -> list[bool] | None:
    """Return whether each row of a row group has a value in ``column``; None if all do by the file's statistics."""
    import pyarrow as pa

    stated = opened.metadata.row_group(group)
    of_column = [
        stated.column(k)
        for k in range(stated.num_columns)
        if stated.column(k).path_in_schema in (column, f"{column}.bytes")
        or stated.column(k).path_in_schema.startswith(f"{column}.list.")
    ]
    if of_column and all(one.statistics is not None and one.statistics.null_count == 0 for one in of_column):
        return None
    found: list[bool] = []
    try:
        for batch in opened.iter_batches(IMAGES_PER_READ, row_groups=[group], columns=[column]):
            values = batch.column(0)
            if pa.types.is_struct(values.type):
                found += [bool(value and (value.get("bytes") or value.get("path"))) for value in values.to_pylist()]
            else:
                found += values.is_valid().to_pylist()
    # If a page is damaged, its rows and all later rows count as having a value; reading their images will fail.
    except (pa.ArrowException, OSError):
        pass
    return found + [True] * (stated.num_rows - len(found))


def _count_rows(file: Location) -> int | None:
    with contextlib.suppress(Damage), _errors_as_damage(file), open_parquet(file) as opened:
        _check_rows(opened, file)
        return int(opened.metadata.num_rows)
    return None


def _rows(opened: Any, group: int, columns: tuple[str, ...]) -> Iterator[dict[str, Any] | Damage]:
    """Yield the values of each row of a row group, by column; for each row from a damaged page on, yield the damage."""
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
    """Convert a column to Python values, one by one if a string is not UTF-8 or Python cannot represent a date."""
    try:
        return list(column.to_pylist())
    # ValueError includes UnicodeDecodeError, for strings; OverflowError is raised for dates.
    except (ValueError, OverflowError):
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
    """Column of an open Parquet file; reading its values in row order is fastest, because a batch of rows is cached."""

    def __init__(self, path: str, column: str, version: str) -> None:
        self._file = open_parquet(locate_version(path, version))
        self._column = column
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None
        self._start = self._stop = 0

    def image(self, group: int, row: int) -> Any:
        """Return the column's value, an Arrow scalar, in row ``row`` of row group ``group``."""
        if group != self._group or row < self._start:
            batches = self._file.iter_batches(IMAGES_PER_READ, row_groups=[group], columns=[self._column])
            self._group, self._batches, self._start, self._stop = group, batches, 0, 0
        while row >= self._stop:
            batch = next(self._batches, None)
            if batch is None:
                raise ImageError(f"row group {group} ends before its row {row}")
            self._batch = batch
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows
        return self._batch.column(0)[row - self._start]


@functools.lru_cache(_OPEN_COLUMNS)
def _open_file(path: str, column: str, version: str) -> _OpenFile:
    return _OpenFile(path, column, version)


def read_parquet(source: Input) -> bytes:
    """Return a row's image, or its map of numbers as a .npy file.

    ``source.key`` holds the row group, the row and the column's name. The Parquet file stays open.
    """
    group, row = _ROW.unpack_from(source.key)
    scalar = _open_file(source.path, source.key[_ROW.size :].decode(), source.version).image(group, row)
    if is_tensor(scalar.type):
        return tensor_to_npy(scalar)
    value = scalar.as_py()
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return read_input(Input(source.name, -1, str(named_file(locate(source.path).parent, value["path"]))))
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ImageError("the row holds no image")
    return value


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a Parquet file, or a folder with Parquet files of images.

    The files may lie in folders of splits, folders of configurations, or folders called ``column=value``. Parquet files
    without images do not count, because img2dataset writes them beside its tars.
    """
    if not probe.is_folder:
        return probe.head().startswith(_MAGIC)
    return holds_images(probe) is True


FORMAT = SourceFormat(
    list_parquet,
    options=("image_field", "label_field", "split"),
    recognizes=recognizes,
    object_stores=True,
    takes_maps=True,
)
