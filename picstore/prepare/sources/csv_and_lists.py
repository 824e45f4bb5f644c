"""CSV, TSV or JSON Lines as a source: a row per image with its path, its label, and columns that become the extra."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from picstore.errors import NotADataset, UsageError
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.sources.csv_of_boxes import (
    corner_columns,
    images_by_stem,
    list_boxes,
    names_of_columns,
)
from picstore.prepare.sources.fields import SkippedFields, choose_image
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import RowLabels
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.listing_builder import FoundPart, list_parts
from picstore.prepare.sources.metadata import decode_text
from picstore.prepare.sources.named_files import named_file
from picstore.prepare.sources.refused_files import require_text
from picstore.prepare.sources.samples import Notes, SourceSample, build_listing, refuse_all_elsewhere
from picstore.prepare.sources.source_file import SourceFile, printable, read_whole
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import is_wide, text_of_file
from picstore.storage.target_forms import OWN

_PATH_FIELDS = (
    *("path", "file_name", "filename", "file", "image", "image_path", "filepath", "img", "fname"),
    *("image_id", "imageid", "image_name"),
)
_REPEATED = "repeated"  # of notes
_JSON_LINES = (".jsonl", ".ndjson")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_MAX_TABLE = 1 << 32  # bytes
_PART_BYTES = 1 << 19  # 5,000 rows, 0.1 s
_MAX_HEADER = 1 << 16  # bytes of the names of a CSV's columns, if it is divided; csv refuses a field of twice as many
_CUT = "cut off, "  # begins the problem of a last line without an end
_EXTRA, _ATTACHMENTS = "extra", "attachments"


def list_table(
    location: Location,
    *,
    root: Where | None = None,
    image_field: str | None = None,
    label_field: str | None = None,
    engine: Engine | None = None,
) -> Listing:
    """List every row in order. Labels are integers, or names that are numbered by sorted name; empty ones are −1.

    In JSON Lines two columns are special if they hold objects: ``extra`` becomes the extra itself, and ``attachments``
    maps names to paths. `picstore export --format folder` writes such a table.

    A CSV begins with the names of its columns. Paths are relative to ``root``, by default the folder of the table.
    """
    require_text(location)
    base = location.parent if root is None else locate(root)
    if _suffix(location) in _JSON_LINES:
        skipped = SkippedFields()
        rows = _json_rows(location, skipped)
        notes: Notes = {}
        samples = _noting_repeated(_samples(location, base, rows, image_field, label_field, skipped), notes)
        remarks = itertools.chain(skipped.remarks(), _remarks(notes))
        listing = build_listing("table", samples, where=location, remarks=remarks, labels=label_field)
    elif (boxes := _list_box_csv(location, base, image_field, label_field)) is not None:
        listing = boxes
    else:
        parts = _csv_parts(location, base, image_field, label_field)
        builder = list_parts(_list_csv_part, parts, engine)
        told = _remarks(builder.notes)
        listing = builder.build("table", where=location, remarks=told, labels=label_field)
    return refuse_all_elsewhere(listing, location)


def _list_box_csv(table: Location, root: Location, image_field: str | None, label_field: str | None) -> Listing | None:
    """List a CSV with a row for each box; None for other tables."""
    with SourceFile(table) as file:
        head = _text(file.read(0, min(file.size, _MAX_HEADER)))
    try:
        first = next(csv.reader(io.StringIO(head, newline=""), delimiter=_delimiter(table)), [])
    except csv.Error:
        return None
    without_names = names_of_columns(first)
    names = without_names or first
    corners = corner_columns(names)
    if corners is None:
        return None
    image = choose_image(image_field, names, table, _PATH_FIELDS)
    if label_field is not None and label_field not in names:
        raise UsageError(f"{table} has no column {label_field!r}; it has {', '.join(names)}")
    by_stem: dict[str, str] = {}

    def locate_image(name: str) -> Location:
        if "." not in name and not by_stem:
            by_stem.update(images_by_stem(root))
        return named_file(root, by_stem.get(name, name))

    rows = _csv_rows(table, _text(_read(table)), without_names, 0)
    return list_boxes(
        table, rows, image=image, corners=corners, names=names, label=label_field, locate_image=locate_image
    )


@dataclass(frozen=True, slots=True)
class _CsvPart:
    """Some lines of a CSV.

    Attributes:
        bounds: of its bytes in the file.
        lines: before it.
        names: of the columns; None if its first row has them.
        fields: of image and label, as the user gives them.
        data: its bytes, if the file is one part.
    """

    table: Location
    root: Location
    bounds: tuple[int, int]
    lines: int
    names: list[str] | None
    fields: tuple[str | None, str | None]
    data: bytes | None = None


def _csv_parts(table: Location, root: Location, *fields: str | None) -> list[_CsvPart]:
    """Divide a CSV at ends of lines; one part if a row may have several lines, which quotes allow."""
    data = _read(table)
    chosen, header = (fields[0], fields[1]), data.find(b"\n")
    of_lines = b'"' not in data and data.count(b"\r") == data.count(b"\r\n") and not is_wide(data)
    if len(data) < 2 * _PART_BYTES or not 0 < header < _MAX_HEADER or not of_lines:
        return [_CsvPart(table, root, (0, len(data)), 0, None, chosen, data)]
    parts: list[_CsvPart] = []
    names, begin, lines = None, 0, 0
    while begin < len(data):
        end = data.find(b"\n", begin + _PART_BYTES) + 1 or len(data)
        parts.append(_CsvPart(table, root, (begin, end), lines, names, chosen))
        names = names or _text(data[:header]).rstrip("\r").split(_delimiter(table))
        lines += data.count(b"\n", begin, end)
        begin = end
    return parts


def _list_csv_part(part: _CsvPart) -> FoundPart:
    data = part.data
    if data is None:
        with SourceFile(part.table) as file:
            data = file.read(part.bounds[0], part.bounds[1] - part.bounds[0])
    rows = _csv_rows(part.table, _text(data), part.names, part.lines)
    notes: Notes = {}
    samples = _samples(part.table, part.root, rows, *part.fields, SkippedFields())
    return FoundPart(list(_noting_repeated(samples, notes)), notes)


def _noting_repeated(samples: Iterator[SourceSample], notes: Notes) -> Iterator[SourceSample]:
    """Yield samples, and count rows that name the image of the row before, as tables of objects have them."""
    before = None
    for sample in samples:
        if sample.path == before and not sample.problem:
            count, least = notes.get(_REPEATED, (0, sample.name))
            notes[_REPEATED] = count + 1, min(least, sample.name)
        before = sample.path
        yield sample


def _remarks(notes: Notes) -> Iterator[str]:
    if _REPEATED in notes:
        count, name = notes[_REPEATED]
        rows = "1 row names" if count == 1 else f"{count:,} rows name"
        yield (
            f"{rows} the same image as the row before, such as {name}: each is a record of its own; if rows are boxes, "
            "write columns xmin, ymin, xmax, ymax, which make one record of an image"
        )


def _suffix(location: Location) -> str:
    return PurePath(location.name).suffix.lower()


def _read(location: Location) -> bytes:
    if not location.is_file():
        raise NotADataset(f"{location} is no file")
    return read_whole(location, _MAX_TABLE)


def _utf8(data: bytes) -> bytes:
    """The bytes of a text in UTF-8, without a byte order mark."""
    return _text(data).encode("utf-8", "surrogateescape") if is_wide(data) else data.removeprefix(codecs.BOM_UTF8)


def _text(data: bytes) -> str:
    return text_of_file(data, "surrogateescape")


def _delimiter(location: Location) -> str:
    return _DELIMITERS.get(_suffix(location), ",")


# A row's line number, and its values by column or the problem why it has none.
_Row = tuple[int, dict[str, Any] | str]


def _csv_rows(location: Location, text: str, names: list[str] | None, lines: int) -> Iterator[_Row]:
    """Rows with their line numbers; without ``names`` the first row has them. ``lines`` precede the text."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(location), strict=True)
    try:
        names = next(reader, []) if names is None else names
        if len(set(names)) < len(names):
            raise UsageError(f"{location}: two columns of one name in {', '.join(names)}; rename one")
        for row in reader:
            number = lines + reader.line_num
            if row:
                if len(row) != len(names):
                    cut = _CUT if len(row) < len(names) and number == lines + text.count("\n") + 1 else ""
                    yield number, f"{cut}{len(row)} values; give {len(names)}, one a column"
                else:
                    yield number, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UsageError(f"{location} line {lines + reader.line_num}: {error}") from error


def _json_rows(location: Location, skipped: SkippedFields) -> Iterator[_Row]:
    lines = _utf8(_read(location)).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row = json_object(line, skipped)
            cut = "" if number < len(lines) else _CUT
            yield number, f"{cut}no JSON object: {printable(decode_text(line[:80]))!r}" if row is None else row


def _samples(
    table: Location,
    root: Location,
    rows: Iterator[_Row],
    image_field: str | None,
    label_field: str | None,
    skipped: SkippedFields,
) -> Iterator[SourceSample]:
    image, labels = None, RowLabels(label_field)
    for number, row in rows:
        row_name = f"{table} line {number}"
        if isinstance(row, str):
            # Nothing tells how many lines a table had that was cut off: as many again as there are.
            lost = number if row.startswith(_CUT) else 0
            name, problem = printable(f"{table.name} line {number}"), f"line {number}: {row}"
            yield SourceSample(name, str(table), problem=problem, lost=lost)
            continue
        if image is None:
            image = choose_image(image_field, row, table, _PATH_FIELDS)
        name = row.pop(str(image), None)
        if not isinstance(name, str) or not name:
            problem = f"line {number}: no {image}; give the path of an image"
            yield SourceSample(printable(f"{table.name} line {number}"), str(table), problem=problem)
            continue
        sample = SourceSample(printable(name), str(root))
        try:
            sample.path = str(named_file(root, name))
        except UsageError as error:
            sample.problem = f"{error}; --root names another folder"
        sample.label = labels.take(row)
        sample.attachments = _attachments(row, root, row_name)
        if isinstance(row.get(_EXTRA), dict):
            skipped.merge(row, row.pop(_EXTRA))
            sample.targets = OWN
        sample.extra = {key: value for key, value in row.items() if value != ""}
        yield sample


def _attachments(row: dict[str, Any], root: Location, row_name: str) -> tuple[tuple[str, Input], ...]:
    """Attachments of a row; UsageError if one lies outside ``root``."""
    found = row.get(_ATTACHMENTS)
    if not isinstance(found, dict):
        return ()
    del row[_ATTACHMENTS]
    try:
        files = [(key, name, named_file(root, name)) for key, name in found.items()]
    except UsageError as error:
        raise UsageError(f"{row_name}: attachments: {error}") from error
    return tuple((key, Input(printable(name), -1, str(file))) for key, name, file in files)


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a file .csv, .tsv, .jsonl or .ndjson."""
    return not probe.is_folder and _suffix(probe.location) in (*_JSON_LINES, *_DELIMITERS)


FORMAT = SourceFormat(
    list_table,
    options=("root", "image_field", "label_field"),
    recognizes=recognizes,
    object_stores=True,
    takes_engine=True,
)
