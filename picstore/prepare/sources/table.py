"""CSV or JSONL with a row an image: its path, its label, and columns that become the extra."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Input, Listing, SourceFile, printable
from picstore.prepare.sources.samples import LABEL_FIELDS, Label, Sample, as_label, choose, json_object, listing_of
from picstore.storage.location.resolve import Location, Where, locate

_PATHS = ("path", "file_name", "filename", "file", "image", "image_path", "filepath", "img", "fname", "image_id")
_JSON = (".jsonl", ".ndjson")
_COMMAS = {".csv": ",", ".tsv": "\t"}
_MAX_TABLE = 1 << 32  # bytes
_EXTRA, _ATTACHMENTS = "extra", "attachments"


def list_table(
    place: Location, *, root: Where | None = None, image_field: str | None = None, label_field: str | None = None
) -> Listing:
    """Every row in order. Labels are integers, or names that are numbered by sorted name; empty ones are −1.

    Of JSONL two columns are special when they hold objects: ``extra`` is taken apart into the record's extra, and
    ``attachments`` maps names to paths. `picstore export --format folder` writes such a table.

    Args:
        place: the table; a CSV begins with the names of its columns.
        root: where paths begin; by default where the table lies.
        image_field: the column of paths; by default the first of path, file_name, filename, file, image, …

    Raises:
        UsageError: a row is not what it should be; the message says which.
    """
    top = place.parent if root is None else locate(root)
    rows = _json_rows(place) if _suffix(place) in _JSON else _csv_rows(place)
    return listing_of("table", _samples(place, top, rows, image_field, label_field))


def _suffix(place: Location) -> str:
    return PurePath(place.name).suffix.lower()


def _text(place: Location) -> str:
    if not place.is_file():
        raise NotADataset(f"{place} is no file")
    try:
        with SourceFile(place) as file:
            if file.size > _MAX_TABLE:
                raise UsageError(f"{place} has {file.size:,} bytes; tables of {_MAX_TABLE:,} can be read")
            return file.read(0, file.size).decode("utf-8-sig", "surrogateescape")
    except Damage as error:
        raise NotADataset(f"{place} {error.what}") from error


def _csv_rows(place: Location) -> Iterator[tuple[int, dict[str, Any]]]:
    text = io.StringIO(_text(place), newline="")
    reader = csv.reader(text, delimiter=_COMMAS.get(_suffix(place), ","), strict=True)
    try:
        names = next(reader, [])
        if len(set(names)) < len(names):
            raise UsageError(f"{place}: two columns of one name in {', '.join(names)}")
        for row in reader:
            if row:
                if len(row) != len(names):
                    raise UsageError(f"{place} line {reader.line_num}: {len(row)} values, {len(names)} columns")
                yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UsageError(f"{place} line {reader.line_num}: {error}") from error


def _json_rows(place: Location) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_text(place).split("\n"), start=1):
        if line.strip():
            row = json_object(line.encode("utf-8", "surrogateescape"))
            if row is None:
                raise UsageError(f"{place} line {number}: no JSON object: {printable(line[:80])!r}")
            yield number, row


def _samples(
    table: Location,
    root: Location,
    rows: Iterator[tuple[int, dict[str, Any]]],
    image_field: str | None,
    label_field: str | None,
) -> Iterator[Sample]:
    image = label = None
    for number, row in rows:
        place = f"{table} line {number}"
        if image is None:
            image = choose(image_field, row, _PATHS, what="image", path=table)
        if label is None and label_field in (None, *row):
            label = choose(label_field, row, LABEL_FIELDS, what="label", path=table, must=False)
        name = row.pop(str(image), None)
        if not isinstance(name, str) or not name:
            raise UsageError(f"{place}: no {image}")
        sample = Sample(printable(name), str(root / name))
        try:
            sample.label = _label(row.pop(label, "")) if label is not None else None
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from error
        sample.attachments = _attachments(row, root, place)
        if isinstance(row.get(_EXTRA), dict):
            row |= row.pop(_EXTRA)
        sample.extra = {key: printable(v) if isinstance(v, str) else v for key, v in row.items() if v != ""}
        yield sample


def _label(value: Any) -> Label:
    return None if value == "" else as_label(value)


def _attachments(row: dict[str, Any], root: Location, place: str) -> tuple[tuple[str, Input], ...]:
    """Files that are stored as they are; a table from elsewhere must not fetch them from outside its folder."""
    found = row.get(_ATTACHMENTS)
    if not isinstance(found, dict):
        return ()
    del row[_ATTACHMENTS]
    for name in found.values():
        if not isinstance(name, str) or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise UsageError(f"{place}: attachment {name!r} does not lie below {root}")
    return tuple((key, Input(printable(name), -1, str(root / name))) for key, name in found.items())


def looks_like(glance: SourceProbe) -> bool:
    """A file .csv, .tsv, .jsonl or .ndjson."""
    return not glance.is_folder and _suffix(glance.place) in (*_JSON, *_COMMAS)


SOURCE = Source(list_table, options=("root", "image_field", "label_field"), guess=looks_like, stores=True)
