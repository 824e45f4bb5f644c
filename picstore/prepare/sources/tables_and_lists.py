"""Text files with one image per line as sources: tables (CSV, TSV, JSON Lines), and Caffe's lists of paths and labels.

All columns of a table except path and label become the extra.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.sources.csv_rows_and_boxes import (
    CUT,
    DELIMITERS,
    MAX_HEADER,
    PATH_FIELDS,
    Row,
    csv_rows,
    delimiter_of,
    list_box_csv,
    read_table,
    text_of_table,
)
from picstore.prepare.sources.input_table import InputView
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import RowLabels, number_of_text
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.listing_builder import (
    FoundPart,
    ListingBuilder,
    Notes,
    add_note,
    list_parts,
    refuse_all_elsewhere,
)
from picstore.prepare.sources.metadata import SkippedFields, decode_text
from picstore.prepare.sources.refused_files import require_text
from picstore.prepare.sources.samples import SourceSample, choose_image
from picstore.prepare.sources.source_file import SourceFile, named_file, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.annotations import OWN
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import is_wide, text_lines

_REPEATED = "repeated"  # key in ``Notes`` for the number of rows that name the previous row's image
_JSON_LINES = (".jsonl", ".ndjson")
_PART_BYTES = 1 << 19  # bytes of a CSV per part, about 5,000 rows, which are listed in 0.1 s
_EXTRA, _ATTACHMENTS = "extra", "attachments"
_SHOWN = 80  # largest number of characters of a line that a message quotes


def list_table(
    location: Location,
    *,
    root: Where | None = None,
    image_field: str | None = None,
    label_field: str | None = None,
    engine: Engine | None = None,
) -> Listing:
    """List a table's rows in order. Labels are integers, or names numbered by sorted name; an empty label is −1.

    In JSON Lines, an object in the column ``extra`` becomes the extra, and an object in ``attachments`` maps names to
    paths.

    The first line of a CSV names the columns. Paths are relative to ``root``, by default the table's folder.
    """
    require_text(location)
    base = location.parent if root is None else locate(root)
    if _suffix(location) in _JSON_LINES:
        skipped = SkippedFields()
        notes: Notes = {}
        samples = _samples(location, base, _json_rows(location, skipped), image_field, label_field, skipped)
        builder = ListingBuilder(_noting_repeated(samples, notes))
        remarks = itertools.chain(skipped.remarks(), _remarks(notes))
        listing = builder.build("table", where=location, remarks=remarks, labels=label_field)
    elif (boxes := list_box_csv(location, base, image_field, label_field)) is not None:
        listing = boxes
    else:
        builder = list_parts(_list_csv_part, _csv_parts(location, base, image_field, label_field), engine)
        listing = builder.build("table", where=location, remarks=_remarks(builder.notes), labels=label_field)
    return refuse_all_elsewhere(listing, location)


def list_paths(location: Location, *, root: Where | None = None) -> Listing:
    """List the images of a text file whose lines are ``path label``.

    Paths may contain spaces, and are relative to ``root``, by default the list's folder. Labels are integers, or names,
    which ``--classes`` must number. A line without a label becomes an input that fails.
    """
    require_text(location)
    base = location.parent if root is None else locate(root)
    samples = _samples(location, base, _list_rows(location), "path", "label", SkippedFields())
    return refuse_all_elsewhere(ListingBuilder(samples).build("list", where=location), location)


@dataclass(frozen=True, slots=True)
class _CsvPart:
    """Consecutive lines of a CSV.

    Attributes:
        bounds: byte range in the file: start and end.
        lines: number of earlier lines in the CSV.
        names: names of the columns; None if the first row has them.
        fields: columns of image and label that the user named; else None.
        data: bytes of the lines if they are the whole file; else None.
    """

    table: Location
    root: Location
    bounds: tuple[int, int]
    lines: int
    names: list[str] | None
    fields: tuple[str | None, str | None]
    data: bytes | None = None


def _csv_parts(table: Location, root: Location, *fields: str | None) -> list[_CsvPart]:
    """Divide a CSV at line ends; return it in one part if it is small or quotes may let a row span several lines."""
    data = read_table(table)
    chosen, header = (fields[0], fields[1]), data.find(b"\n")
    of_lines = b'"' not in data and data.count(b"\r") == data.count(b"\r\n") and not is_wide(data)
    if len(data) < 2 * _PART_BYTES or not 0 < header < MAX_HEADER or not of_lines:
        return [_CsvPart(table, root, (0, len(data)), 0, None, chosen, data)]
    parts: list[_CsvPart] = []
    names, begin, lines = None, 0, 0
    while begin < len(data):
        end = data.find(b"\n", begin + _PART_BYTES) + 1 or len(data)
        parts.append(_CsvPart(table, root, (begin, end), lines, names, chosen))
        names = names or text_of_table(data[:header]).rstrip("\r").split(delimiter_of(table))
        lines += data.count(b"\n", begin, end)
        begin = end
    return parts


def _list_csv_part(part: _CsvPart) -> FoundPart:
    data = part.data
    if data is None:
        with SourceFile(part.table) as file:
            data = file.read(part.bounds[0], part.bounds[1] - part.bounds[0])
    rows = csv_rows(part.table, text_of_table(data), part.names, part.lines)
    notes: Notes = {}
    samples = _samples(part.table, part.root, rows, *part.fields, SkippedFields())
    return FoundPart(list(_noting_repeated(samples, notes)), notes)


def _noting_repeated(samples: Iterator[SourceSample], notes: Notes) -> Iterator[SourceSample]:
    """Yield samples, and count rows that name the same image as the row before, as in tables with a row per object."""
    before = None
    for sample in samples:
        if sample.path == before and not sample.problem:
            add_note(notes, _REPEATED, sample.name)
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


def _json_rows(location: Location, skipped: SkippedFields) -> Iterator[Row]:
    data = read_table(location)
    utf8 = (
        text_of_table(data).encode("utf-8", "surrogateescape") if is_wide(data) else data.removeprefix(codecs.BOM_UTF8)
    )
    lines = utf8.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row = json_object(line, skipped)
            cut = "" if number < len(lines) else CUT
            yield number, f"{cut}no JSON object: {printable(decode_text(line[:_SHOWN]))!r}" if row is None else row


def _list_rows(location: Location) -> Iterator[Row]:
    for number, line in enumerate(text_lines(location), start=1):
        words = line.strip().rsplit(None, 1)
        if len(words) == 2:
            yield number, {"path": words[0], "label": printable(words[1])}
        elif words:
            yield number, f"not `path label`: {printable(line[:_SHOWN])!r}"


def _samples(
    table: Location,
    root: Location,
    rows: Iterator[Row],
    image_field: str | None,
    label_field: str | None,
    skipped: SkippedFields,
) -> Iterator[SourceSample]:
    image, labels = None, RowLabels(label_field)
    for number, row in rows:
        row_name = f"{table} line {number}"
        if isinstance(row, str):
            # If the file was cut off in this line, assume that as many lines were lost as the file still has.
            lost = number if row.startswith(CUT) else 0
            name, problem = printable(f"{table.name} line {number}"), f"line {number}: {row}"
            yield SourceSample(name, str(table), problem=problem, lost=lost)
            continue
        if image is None:
            image = choose_image(image_field, row, table, PATH_FIELDS)
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
    found = row.get(_ATTACHMENTS)
    if not isinstance(found, dict):
        return ()
    del row[_ATTACHMENTS]
    try:
        files = [(key, name, named_file(root, name)) for key, name in found.items()]
    except UsageError as error:
        raise UsageError(f"{row_name}: attachments: {error}") from error
    return tuple((key, Input(printable(name), -1, str(file))) for key, name, file in files)


def require_integers(listing: Listing, location: Location) -> Listing:
    """Replace class names such as "3" by integers; an input with any other class name gets a ``problem``.

    Raise UsageError if at least half of the labeled inputs have names that are not integers, because ``--classes`` must
    then number the names.
    """
    names = listing.classes
    found = [number_of_text(name) for name in names]
    numbers = [number if isinstance(number, int) else None for number in found]
    used = [one.label for one in listing.inputs if one.label >= 0]
    if 2 * sum(numbers[label] is None for label in used) >= len(used):
        named = next(name for name, number in zip(names, numbers, strict=True) if number is None)
        raise UsageError(f"{location}: the label {named!r} must be an integer, or a name in a file for --classes")

    def change(one: Input) -> Input:
        if one.label < 0:
            return one
        number = numbers[one.label]
        if number is not None:
            return replace(one, label=number)
        return replace(one, label=-1, problem=one.problem or f"its label {names[one.label]!r} is not an integer")

    remarks = [remark for remark in listing.remarks if not remark.startswith("labels: ")]
    return replace(listing, inputs=InputView(listing.inputs, change=change), classes=[], remarks=remarks)


def recognizes_table(probe: SourceProbe) -> bool:
    """Return whether a location is a file with the suffix .csv, .tsv, .jsonl or .ndjson."""
    return not probe.is_folder and _suffix(probe.location) in (*_JSON_LINES, *DELIMITERS)


def recognizes_list(probe: SourceProbe) -> bool:
    """Return whether a location is a file; this kind is tried last."""
    return not probe.is_folder


TABLE = SourceFormat(
    list_table,
    options=("root", "image_field", "label_field"),
    recognizes=recognizes_table,
    object_stores=True,
    takes_engine=True,
)
LIST = SourceFormat(list_paths, options=("root",), recognizes=recognizes_list, object_stores=True)
