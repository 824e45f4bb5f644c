"""Targets of an extra: boxes, labels, polygons and keypoints, in picstore's form and in other programs' forms.

An extra is a user's JSON and not trusted: :func:`read_objects` checks types, shapes and bounds (docs/formats.md,
"Targets"). :func:`in_own_form` turns other forms of boxes, outlines and keypoints into picstore's form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import F64, I64
from picstore.errors import ImageError, UsageError

FIELDS = ("boxes", "box_labels", "polygons", "keypoints")
# Largest absolute value of a coordinate in pixels: beyond any image, and float32 holds all integers up to this value.
MAX_COORDINATE = 1 << 24
# Largest number of an image's objects, and also of all their outlines. Without a limit, an extra of 16 MiB, compressed
# to 1 KB, could hold a million objects, each read in 10 to 100 µs. Photographs of crowds have 25,000 people.
MAX_OBJECTS = 1 << 15
# Largest number of an image's keypoints, counted as if each object had as many as the object with the most.
MAX_KEYPOINTS = 1 << 20
OWN = "own"  # value of ``targets`` for a source whose extras have picstore's form
BOX_FORMS = ("xyxy", "xywh", "cxcywh")
_NORMALIZED = "-normalized"
# Decimal places, in pixels, of coordinates that are converted from normalized ones; further digits would be noise.
_DECIMALS = 3
_FORM = re.compile(r"(boxes):(xyxy|xywh|cxcywh)(-normalized)?|(polygons|keypoints)(:normalized)?")


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects in an image, read from target fields of a record's extra; None stands for a missing field.

    Attributes:
        count: number of objects, k.
        boxes: left, top, right and bottom in pixels from the image's top left corner, float64 (k, 4).
        labels: class number of each object, int64 (k,), from the field ``box_labels``.
        polygons: outlines of each object, a list of float64 (p, 2) arrays of x and y, in the coordinates of ``boxes``.
        keypoints: x, y and visibility of each object's keypoints, float64 (m, 3); (0, 0) is the center of the first
            pixel.
    """

    count: int = 0
    boxes: F64 | None = None
    labels: I64 | None = None
    polygons: list[list[F64]] | None = None
    keypoints: list[F64] | None = None


def parse_extra(extra: bytes) -> Any:
    """Parse the JSON of a record's extra; return None for an empty extra, raise ImageError if it is not JSON."""
    try:
        return json.loads(extra) if extra else None
    except (ValueError, RecursionError) as error:
        raise ImageError(f"has an extra that is not JSON: {error}") from error


def read_objects(extra: Any, fields: Collection[str] = FIELDS) -> Objects:
    """Return the objects that an extra describes; none if the extra is not a JSON object or has no target fields.

    Target fields not in ``fields`` are left out, but must be lists as long as the rest. Raise ImageError if a field is
    malformed.
    """
    if not isinstance(extra, dict):
        return Objects()
    values = {name: extra[name] for name in FIELDS if name in extra}
    counts = {}
    for name, value in values.items():
        if not isinstance(value, list):
            raise ImageError(f"{name} is {_shown(value)}, not a list with an entry for each object")
        counts[name] = len(value)
    if len(set(counts.values())) > 1:
        held = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ImageError(f"the objects do not match: {held}; each has one entry an object")
    count = max(counts.values(), default=0)
    if count > MAX_OBJECTS:
        raise ImageError(f"{count:,} objects; at most {MAX_OBJECTS:,} are possible")
    wanted = {name: value for name, value in values.items() if name in fields}
    polygons, keypoints = wanted.get("polygons"), wanted.get("keypoints")
    if (outlines := sum(map(_length, polygons or ()))) > MAX_OBJECTS:
        raise ImageError(f"{outlines:,} outlines; at most {MAX_OBJECTS:,} are possible")
    if (most := max(map(_length, keypoints or ()), default=0)) * count > MAX_KEYPOINTS:
        raise ImageError(
            f"{count:,} objects of up to {most:,} keypoints; at most {MAX_KEYPOINTS:,} in all are possible"
        )
    return Objects(
        count=count,
        boxes=_boxes(wanted["boxes"]) if "boxes" in wanted else None,
        labels=_labels(wanted["box_labels"]) if "box_labels" in wanted else None,
        polygons=None if polygons is None else [_outlines(each, k) for k, each in enumerate(polygons)],
        keypoints=None if keypoints is None else [_points(each, k) for k, each in enumerate(keypoints)],
    )


def _boxes(value: list[Any]) -> F64:
    boxes = _numbers(value, (4,), "boxes", "a list of [left, top, right, bottom]")
    backwards = (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    if backwards.any():
        k = int(backwards.argmax())
        raise ImageError(f"boxes[{k}] is {_shown(value[k])}: its right or bottom comes before its left or top")
    return boxes


def _labels(value: list[Any]) -> I64:
    if not all(type(label) is int and -1 <= label < 1 << 63 for label in value):
        raise ImageError(f"box_labels is {_shown(value)}, not a list of integers from -1 on")
    return np.array(value, dtype=np.int64)


def _outlines(value: Any, k: int) -> list[F64]:
    if not isinstance(value, list):
        raise ImageError(f"polygons[{k}] is {_shown(value)}, not a list of outlines")
    outlines = []
    for n, flat in enumerate(value):
        expected = "a list of x0, y0, x1, y1, … of three points or more"
        outline = _numbers(flat, (), f"polygons[{k}][{n}]", expected)
        if len(outline) < 6 or len(outline) % 2:
            raise ImageError(f"polygons[{k}][{n}] is {_shown(flat)}, not {expected}")
        outlines.append(outline.reshape(-1, 2))
    return outlines


def _points(value: Any, k: int) -> F64:
    expected = "a list of [x, y, visibility], with a visibility of 0, 1 or 2"
    points = _numbers(value, (3,), f"keypoints[{k}]", expected)
    if not np.isin(points[:, 2], (0, 1, 2)).all():
        raise ImageError(f"keypoints[{k}] is {_shown(value)}, not {expected}")
    return points


def _numbers(value: Any, row: tuple[int, ...], name: str, expected: str) -> F64:
    """Convert nested lists of numbers to an array, float64 (n, *row), with any n.

    Raise ImageError if ``value`` has another form, or contains NaN or a number beyond ±MAX_COORDINATE.
    """
    if value == []:
        return np.zeros((0, *row))
    try:
        array = np.array(value)
    except (ValueError, RecursionError):  # The lists differ in length, or are nested too deep.
        array = np.array(None)
    if not isinstance(value, list) or array.dtype.kind not in "iuf" or array.shape[1:] != row:
        raise ImageError(f"{name} is {_shown(value)}, not {expected}")
    numbers: F64 = array.astype(np.float64)
    if not (np.abs(numbers) <= MAX_COORDINATE).all():  # The comparison is false for NaN too.
        raise ImageError(f"{name} holds a number that is not a coordinate: beyond ±{MAX_COORDINATE:,} or NaN")
    return numbers


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    try:
        text = repr(value[:4] if isinstance(value, (list, str)) else value)
    except RecursionError:
        return "a list of lists, nested deeply"
    return text if len(text) <= 60 else text[:60] + "…"


def check_targets(text: str) -> str:
    """Check a value of ``--targets``, such as ``boxes:cxcywh-normalized,polygons``; return it without white space.

    Raise UsageError if a field or its form is unknown, or a field is named twice.
    """
    forms = [form.strip() for form in text.split(",")]
    for form in forms:
        if _FORM.fullmatch(form) is None:
            raise UsageError(
                f"targets {form!r} are not understood; write boxes:xyxy, boxes:xywh or boxes:cxcywh, polygons, "
                "keypoints; for coordinates from 0 to 1 boxes:xyxy-normalized, polygons:normalized, …"
            )
    names = [form.partition(":")[0] for form in forms]
    if len(set(names)) < len(names):
        raise UsageError(f"targets {text!r} name a field twice; name each once")
    return ",".join(forms)


def target_fields(forms: str) -> dict[str, str]:
    """Map fields to how they are written: "boxes:xywh,polygons" gives "xywh" for boxes, "" (pixels) for polygons."""
    found = dict(form.partition(":")[::2] for form in forms.split(","))
    return {**found, "box_labels": ""} if "boxes" in found else found


def in_own_form(extra: dict[str, Any], forms: str, size: tuple[int, int]) -> dict[str, Any]:
    """Convert the targets in an extra to pixels, and boxes to left, top, right, bottom.

    ``forms`` is a result of :func:`check_targets`; ``size`` is width and height of the upright image. Malformed values
    are returned unchanged, because :func:`read_objects` reports them.
    """
    own = dict(extra)
    for field, form in target_fields(forms).items():
        normalized = form.endswith("normalized")
        scale = (float(size[0]), float(size[1])) if normalized else (1.0, 1.0)
        values = own.get(field)
        if not isinstance(values, list) or field == "box_labels":
            continue
        if field == "boxes":
            own[field] = [_corners(box, form.removesuffix(_NORMALIZED), scale) for box in values]
        elif normalized and field == "polygons":
            own[field] = [
                [_scaled(line, scale, 2) for line in each] if isinstance(each, list) else each for each in values
            ]
        elif normalized:
            own[field] = [
                [_scaled(point, scale, 3) for point in each] if isinstance(each, list) else each for each in values
            ]
    return own


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def _corners(box: Any, form: str, scale: tuple[float, float]) -> Any:
    if not _are_numbers(box) or len(box) != 4 or (form == "xyxy" and scale == (1.0, 1.0)):
        return box
    x, y, right, bottom = box
    if form == "xywh":
        right, bottom = x + right, y + bottom
    elif form == "cxcywh":
        x, y, right, bottom = x - right / 2, y - bottom / 2, x + right / 2, y + bottom / 2
    corners = [x * scale[0], y * scale[1], right * scale[0], bottom * scale[1]]
    return corners if scale == (1.0, 1.0) else [round(value, _DECIMALS) for value in corners]


def _scaled(flat: Any, scale: tuple[float, float], step: int) -> Any:
    """Scale the points in a flat list: for ``step`` 2, x and y of each point; for 3, x, y and visibility of keypoints.

    For keypoints, also move the origin from the first pixel's corner to its center. A missing keypoint, [0, 0, 0], and
    a malformed list do not change.
    """
    if not _are_numbers(flat) or len(flat) % step or (step == 3 and not any(flat)):
        return flat
    shift = 0.5 if step == 3 else 0.0
    return [
        value if k % step == 2 else round(value * scale[k % step] - shift, _DECIMALS) for k, value in enumerate(flat)
    ]
