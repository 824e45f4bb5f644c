"""Rows of CSVs; and CSVs of boxes, in which all rows of an image become one record."""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from picstore.errors import NotADataset, UsageError, counted
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.labels import LABEL_FIELDS, Label, number_labels, to_label, usual_field
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.samples import SourceSample, choose_image
from picstore.prepare.sources.source_file import SourceFile, named_file, printable, read_whole, visible_entries
from picstore.storage.location.resolve import Location
from picstore.storage.location.text_files import text_of_file

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PATH_FIELDS = (
    *("path", "file_name", "filename", "file", "image", "image_path", "filepath", "img", "fname"),
    *("image_id", "imageid", "image_name"),
)
# A CSV is divided into parts only if its header has fewer bytes than this.
MAX_HEADER = 1 << 16
CUT = "cut off, "  # start of the message about a last row that has too few values, as in a file that was cut off
_MAX_TABLE = 1 << 32  # largest size in bytes of a table
# Usual names of the columns of a box's left, top, right and bottom, in lower case.
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"),
    ("left", "top", "right", "bottom"),
    ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"),
)
_LABEL_FIELDS = (*LABEL_FIELDS, "labelname", "label_name", "category_name", "category_id", "name")
# Columns of RetinaNet's tables, which have no header.
_RETINANET = ["path", "xmin", "ymin", "xmax", "ymax", "class"]

# Line number of a row, and the row's values by column or the reason why the row cannot be read.
Row = tuple[int, "dict[str, Any] | str"]


def read_table(location: Location) -> bytes:
    """Read a whole table; raise NotADataset if the location is not a file."""
    if not location.is_file():
        raise NotADataset(f"{location} is not a file")
    return read_whole(location, _MAX_TABLE)


def text_of_table(data: bytes) -> str:
    """Decode a table by its byte order mark, else as UTF-8; bytes that are not UTF-8 become lone surrogates."""
    return text_of_file(data, "surrogateescape")


def delimiter_of(table: Location) -> str:
    """Return the delimiter of a CSV: a tab for .tsv, else a comma."""
    return DELIMITERS.get(PurePath(table.name).suffix.lower(), ",")


def csv_rows(table: Location, text: str, names: list[str] | None, lines: int) -> Iterator[Row]:
    """Yield the rows of ``text``, a part of a CSV, with their line numbers; ``lines`` lines come before ``text``.

    ``names`` are the names of the columns; if None, the first row of ``text`` states them.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(table), strict=True)
    try:
        names = next(reader, []) if names is None else names
        if len(set(names)) < len(names):
            raise UsageError(f"{table}: two columns of one name in {', '.join(names)}; rename one")
        for row in reader:
            number = lines + reader.line_num
            if row:
                if len(row) != len(names):
                    cut = CUT if len(row) < len(names) and number == lines + text.count("\n") + 1 else ""
                    yield number, f"{cut}{counted(len(row), 'value')}; give {len(names)}, one a column"
                else:
                    yield number, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UsageError(f"{table} line {lines + reader.line_num}: {error}") from error


@dataclass(slots=True)
class _Image:
    """Rows of a table of boxes that belong to one image.

    Attributes:
        corners: four values per box: left, top, right, bottom.
        others: for each further column, by name, the value in each row.
    """

    corners: array[float] = field(default_factory=lambda: array("d"))
    labels: list[Label] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""


def list_box_csv(table: Location, root: Location, image_field: str | None, label_field: str | None) -> Listing | None:
    """List the images of a CSV of boxes in order of appearance, with label −1.

    A row with four empty box columns names an image without objects. Return None if the table has no columns for the
    corners of boxes.

    Args:
        root: folder of the images. A name without a suffix stands for the file with this stem.
        image_field, label_field: names of the columns of the image's path and of the class; None to choose columns with
            usual names.
    """
    with SourceFile(table) as file:
        head = text_of_table(file.read(0, min(file.size, MAX_HEADER)))
    try:
        first = next(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter_of(table)), [])
    except csv.Error:
        return None
    # The first row of RetinaNet's tables is a path and a box instead of a header.
    has_box = all(value == "" or _number(value) is not None for value in first[1:5])
    names = _RETINANET if len(first) == len(_RETINANET) and has_box and "." in first[0] else first
    corners = _corner_columns(names)
    if corners is None:
        return None
    image = choose_image(image_field, names, table, PATH_FIELDS)
    if label_field is not None and label_field not in names:
        raise UsageError(f"{table} has no column {label_field!r}; it has {', '.join(names)}")
    label = label_field or usual_field([name for name in names if name not in (image, *corners)], _LABEL_FIELDS)
    images, broken = dict[str, _Image](), list[SourceSample]()
    for number, row in csv_rows(table, text_of_table(read_table(table)), None if names is first else names, 0):
        if isinstance(row, str) or not row[image]:
            problem = f"line {number}: {row}" if isinstance(row, str) else f"line {number}: no {image}"
            broken.append(SourceSample(printable(f"{table.name} line {number}"), str(table), problem=problem))
            continue
        found = images.setdefault(row.pop(image), _Image())
        try:
            _add_box(found, row, corners, label)
        except ValueError as error:
            found.problem = found.problem or f"line {number}: {error}"
    numbering = number_labels(Counter(each for found in images.values() for each in found.labels), (), where=table)
    values = [value for found in images.values() for value in found.corners]
    is_normalized = bool(values) and max(values) <= 1
    form = "boxes:xyxy-normalized" if is_normalized else "boxes:xyxy"
    notes, place = Counter[str](), _image_finder(root)
    samples = (
        _sample(name, found, form, numbering.numbers if label else None, place, notes) for name, found in images.items()
    )
    builder = ListingBuilder(itertools.chain(samples, broken))
    total = sum(len(found.labels) for found in images.values())
    where = "from 0 to 1" if is_normalized else "in pixels"
    of_images = f"{counted(len(images), 'image')}, {where} ({', '.join(corners)})"
    remark = f"boxes: {counted(total, 'row', 'give')} the boxes of {of_images}"
    remarks = [f"{count:,} × {what}" for what, count in notes.items()]
    return builder.build("table", where=table, classes=numbering.names, remarks=remarks, no_label=remark)


def _corner_columns(names: Sequence[str]) -> tuple[str, str, str, str] | None:
    lower = {name.strip().lower(): name for name in names}
    for left, top, right, bottom in _CORNERS:
        if {left, top, right, bottom} <= lower.keys():
            return lower[left], lower[top], lower[right], lower[bottom]
    return None


def _add_box(found: _Image, row: dict[str, str], corners: Sequence[str], label: str | None) -> None:
    """Add a row's box to its image, unless all corners are empty; raise ValueError if a corner is not a number."""
    texts = [row.pop(name).strip() for name in corners]
    value = row.pop(label, "") if label else ""
    if not any(texts):
        return
    box = [_number(text) for text in texts]
    for name, text, side in zip(corners, texts, box, strict=True):
        if side is None:
            raise ValueError(f"{name} is {text[:40]!r}, not a number")
    found.corners.extend(side for side in box if side is not None)
    found.labels.append(to_label(value))
    for name, text in row.items():
        found.others.setdefault(name, []).append(sys.intern(text))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _image_finder(root: Location) -> Callable[[str], Location]:
    """Return a function that locates an image by its name, and raises UsageError if the image lies outside ``root``."""
    by_stem: dict[str, str] = {}

    def find(name: str) -> Location:
        if "." not in name and not by_stem:
            files = (entry.name for entry in visible_entries(root) if not entry.is_folder)
            by_stem.update((file.rpartition(".")[0], file) for file in files)
        return named_file(root, by_stem.get(name, name))

    return find


def _sample(
    name: str,
    found: _Image,
    form: str,
    numbers: dict[Label, int] | None,
    find: Callable[[str], Location],
    notes: Counter[str],
) -> SourceSample:
    sample = SourceSample(printable(name), printable(name), problem=found.problem, targets=form)
    try:
        sample.path = str(find(name))
    except UsageError as error:
        sample.problem = found.problem or f"{error}; --root names another folder"
    boxes = [found.corners[k : k + 4].tolist() for k in range(0, len(found.corners), 4)]
    kept = [k for k, (left, top, right, bottom) in enumerate(boxes) if left < right and top < bottom]
    if len(kept) < len(boxes):
        notes["box without an area, or with its right before its left: left out"] += len(boxes) - len(kept)
    sample.extra = {"boxes": [boxes[k] for k in kept]}
    if numbers is not None:
        sample.extra["box_labels"] = [numbers.get(found.labels[k], -1) for k in kept]
        if without := sample.extra["box_labels"].count(-1):
            notes["box without a class: label −1"] += without
    for column, values in found.others.items():
        if any(values) and column not in sample.extra:
            sample.extra[column] = values[0] if len(set(values)) == 1 else [values[k] for k in kept]
    return sample
