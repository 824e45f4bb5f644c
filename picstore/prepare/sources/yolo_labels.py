"""YOLO's label files, with one object per line, and data.yaml, which defines what the values of a line mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.sources.source_file import read_whole
from picstore.prepare.sources.source_kinds import import_library
from picstore.storage.location.resolve import Location
from picstore.storage.location.text_files import text_of_file

_MAX_YAML = 1 << 20  # largest size in bytes of data.yaml; 21,841 names of ImageNet take 600 KB
_MAX_CLASS = 1 << 20
_MAX_KEYPOINTS = 1 << 12  # largest number of keypoints per object
# Largest distance by which a coordinate, a fraction of the image's side, may lie outside 0 to 1, as in Ultralytics.
_BEYOND = 0.01
# Decimal places to which normalized coordinates are rounded, because sums and differences have rounding errors.
_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class Meaning:
    """Meaning of label lines: class names by number, empty if unknown; (keypoints per object, values per keypoint)."""

    names: Sequence[str] = ()
    keypoints: tuple[int, int] | None = None


def parse_labels(text: str, meaning: Meaning) -> dict[str, Any]:
    """Parse a label file to target fields with coordinates from 0 to 1; leave out boxes without area.

    ``without_area`` in the result counts boxes left out. Raise ValueError, which names the line, if a line breaks the
    format.
    """
    found: dict[str, Any] = {"boxes": [], "box_labels": [], "polygons": [], "keypoints": [], "without_area": 0}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            label, box, outline, points = _parse(line.split(), meaning)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not (box[0] < box[2] and box[1] < box[3]):
            found["without_area"] += 1
            continue
        found["boxes"].append(box)
        found["box_labels"].append(label)
        found["polygons"].append([outline] if outline else [])
        found["keypoints"].append(points)
    return found


def _parse(parts: Sequence[str], meaning: Meaning) -> tuple[int, list[float], list[float], list[list[float]]]:
    """Return class, box (left, top, right, bottom), outline and keypoints of a line; raise ValueError on errors."""
    label = _class(parts[0], meaning.names)
    values, outline, points = [_number(part) for part in parts[1:]], list[float](), list[list[float]]()
    if meaning.keypoints is not None:
        count, length = meaning.keypoints
        if len(values) != 4 + count * length:
            raise ValueError(f"{len(values)} numbers behind the class; a box and {count} × {length} are stated")
        points = [_point(values[k : k + length]) for k in range(4, len(values), length)]
        values = values[:4]
    if len(values) == 4:
        x, y, width, height = map(_inside, values)
        box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
    elif len(values) >= 6 and len(values) % 2 == 0:
        outline = [_clipped(_inside(value)) for value in values]
        box = [min(outline[::2]), min(outline[1::2]), max(outline[::2]), max(outline[1::2])]
    else:
        raise ValueError(f"{len(values)} numbers behind the class; a box has 4, and an outline has 6, 8, 10, …")
    return label, [_clipped(value) for value in box], outline, points


def _class(text: str, names: Sequence[str]) -> int:
    value = _number(text)
    if not value.is_integer() or not 0 <= value < (len(names) or _MAX_CLASS):
        known = f" of {len(names):,}" if names else ""
        raise ValueError(f"{text[:40]!r} is not the number of a class{known}")
    return int(value)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a number") from error
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a finite number")
    return value


def _inside(value: float) -> float:
    if not -_BEYOND <= value <= 1 + _BEYOND:
        raise ValueError(f"{value:g} is not from 0 to 1; coordinates are divided by the width and height of the image")
    return value


def _clipped(value: float) -> float:
    return round(min(max(value, 0.0), 1.0), _DECIMALS)


def _point(values: Sequence[float]) -> list[float]:
    """Return (x, y, visibility) of a keypoint; a missing visibility becomes 0 if x or y is negative, else 2."""
    x, y = values[:2]
    visible = values[2] if len(values) == 3 else 2.0 if min(x, y) >= 0 else 0.0
    if visible not in (0, 1, 2):
        raise ValueError(f"a keypoint has the visibility {visible:g}; it is 0, 1 or 2")
    return [_inside(x), _inside(y), int(visible)] if visible else [0, 0, 0]


def read_yaml(file: Location) -> Meaning:
    """Read ``names`` and ``kpt_shape`` of a data.yaml. Scalars stay strings, so that a class may be named ``no``."""
    yaml = import_library("yaml", "PyYAML", "yolo")
    try:
        loader = yaml.BaseLoader(text_of_file(read_whole(file, _MAX_YAML)))
        document = loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())[:200]
        raise UsageError(f"{file} is not YAML that can be read: {what}") from error
    document = document if isinstance(document, dict) else {}
    shape = document.get("kpt_shape")
    try:
        names = _names(document.get("names"))
        return Meaning(names, None if shape is None else _keypoint_shape(shape))
    except (ValueError, TypeError) as error:
        raise UsageError(f"{file}: {error}") from error


def _keypoint_shape(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        count, length = int(value[0]), int(value[1])
        if 0 < count <= _MAX_KEYPOINTS and length in (2, 3):
            return count, length
    raise ValueError("kpt_shape is not the number of keypoints, and 2 or 3 numbers of each")


def _names(value: Any) -> list[str]:
    """Return class names from a list, or from an object of names by number; a class without a name gets its number."""
    if isinstance(value, dict):
        by_number = {int(number): name for number, name in value.items()}
        if by_number and not 0 <= min(by_number) <= max(by_number) < _MAX_CLASS:
            raise ValueError(f"names: a class has a number that is not from 0 to {_MAX_CLASS - 1:,}")
        value = [by_number.get(number, str(number)) for number in range(max(by_number, default=-1) + 1)]
    if value in (None, ""):
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("names is neither a list of names nor names by number")
    return value
