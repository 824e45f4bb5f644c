"""CSVs with a row for each box as a source: rows of one image become one record with its boxes.

RetinaNet, Open Images, Roboflow and many competitions write such tables.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.labels import LABEL_FIELDS, Label, number_labels, to_label, usual_field
from picstore.prepare.sources.samples import SourceSample, build_listing
from picstore.prepare.sources.source_file import printable, visible_entries
from picstore.storage.location.resolve import Location

# Names of the columns of left, top, right and bottom, in lower case.
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"),
    ("left", "top", "right", "bottom"),
    ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"),
)
_LABEL_FIELDS = (*LABEL_FIELDS, "labelname", "label_name", "category_name", "category_id", "name")
_RETINANET = ["path", "xmin", "ymin", "xmax", "ymax", "class"]  # whose tables do not name their columns

Row = tuple[int, "dict[str, Any] | str"]  # number of the line, and values by column or the problem


@dataclass(slots=True)
class _Image:
    """Rows of an image: corners of its boxes, label and further columns of each, and the first problem."""

    corners: array[float] = field(default_factory=lambda: array("d"))
    labels: list[Label] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""


def corner_columns(names: Sequence[str]) -> tuple[str, str, str, str] | None:
    """Return the columns of left, top, right and bottom; None if a table does not have boxes."""
    lower = {name.strip().lower(): name for name in names}
    for left, top, right, bottom in _CORNERS:
        if {left, top, right, bottom} <= lower.keys():
            return lower[left], lower[top], lower[right], lower[bottom]
    return None


def names_of_columns(first: Sequence[str]) -> list[str] | None:
    """Return RetinaNet's names of columns for a first row that is not names but the path and numbers of a box."""
    if len(first) != len(_RETINANET) or not all(value == "" or _number(value) is not None for value in first[1:5]):
        return None
    return _RETINANET if "." in first[0] else None


def list_boxes(
    table: Location,
    rows: Iterable[Row],
    *,
    image: str,
    corners: Sequence[str],
    names: Sequence[str],
    label: str | None,
    locate_image: Callable[[str], Location],
) -> Listing:
    """List the images of a table of boxes in the order in which they come, with label −1 (docs/sources.md).

    Args:
        rows: of the table.
        image, label: columns of the path and the class; None to find the class by usual names.
        corners: columns of the box; empty in all four for an image without objects.
        names: of all columns.
        locate_image: makes a location of a path; UsageError if it leads elsewhere.
    """
    label = label or usual_field([name for name in names if name not in (image, *corners)], _LABEL_FIELDS)
    images, broken = dict[str, _Image](), list[SourceSample]()
    for number, row in rows:
        if isinstance(row, str) or not row[image]:
            problem = f"line {number}: {row}" if isinstance(row, str) else f"line {number}: no {image}"
            broken.append(SourceSample(printable(f"{table.name} line {number}"), str(table), problem=problem))
            continue
        found = images.setdefault(row.pop(image), _Image())
        try:
            _add(found, row, corners, label)
        except ValueError as error:
            found.problem = found.problem or f"line {number}: {error}"
    counts: Counter[Label] = Counter(each for found in images.values() for each in found.labels)
    numbering = number_labels(counts, (), where=table)
    values = [value for found in images.values() for value in found.corners]
    is_normalized = bool(values) and max(values) <= 1
    form = "boxes:xyxy-normalized" if is_normalized else "boxes:xyxy"
    notes = Counter[str]()

    def samples() -> Iterator[SourceSample]:
        for name, found in images.items():
            yield _sample(name, found, form, numbering.numbers if label else None, locate_image, notes)
        yield from broken

    def remarks() -> Iterator[str]:
        for what, count in notes.items():
            yield f"{count:,} × {what}"

    total = sum(len(found.labels) for found in images.values())
    where = "from 0 to 1" if is_normalized else "in pixels"
    remark = f"boxes: {total:,} rows give the boxes of {len(images):,} images, {where} ({', '.join(corners)})"
    return build_listing(
        "table",
        samples(),
        where=table,
        classes=numbering.names,
        remarks=remarks(),
        no_label=remark,
    )


def _add(found: _Image, row: dict[str, str], corners: Sequence[str], label: str | None) -> None:
    """Add a row to its image; ValueError if it has no box."""
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


def _sample(
    name: str,
    found: _Image,
    form: str,
    numbers: dict[Label, int] | None,
    locate_image: Callable[[str], Location],
    notes: Counter[str],
) -> SourceSample:
    sample = SourceSample(printable(name), printable(name), problem=found.problem, targets=form)
    try:
        sample.path = str(locate_image(name))
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


def images_by_stem(root: Location) -> dict[str, str]:
    """Return the names of a folder's files by stem, for tables that name images without a suffix."""
    return {name.rpartition(".")[0]: name for name, is_folder in visible_entries(root) if not is_folder}
