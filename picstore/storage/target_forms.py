"""Forms in which other programs write boxes, outlines and keypoints, and their conversion to picstore's own form."""

from __future__ import annotations

import re
from typing import Any

from picstore.errors import UsageError

OWN = "own"  # targets in picstore's own form, in all target fields (docs/formats.md, "Targets")
BOX_FORMS = ("xyxy", "xywh", "cxcywh")
_NORMALIZED = "-normalized"
_DECIMALS = 3  # of coordinates that are computed from normalized ones; without rounding they show the error of floats
_FORM = re.compile(r"(boxes):(xyxy|xywh|cxcywh)(-normalized)?|(polygons|keypoints)(:normalized)?")


def check_targets(text: str) -> str:
    """Return the forms of ``--targets`` without white space; UsageError for what is not understood.

    They are separated by commas: ``boxes:xywh``, ``boxes:cxcywh-normalized``, ``polygons``, ``keypoints:normalized``.
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
    """Forms by field, with an empty form for coordinates in pixels."""
    found = dict(form.partition(":")[::2] for form in forms.split(","))
    return {**found, "box_labels": ""} if "boxes" in found else found


def in_own_form(extra: dict[str, Any], forms: str, size: tuple[int, int]) -> dict[str, Any]:
    """Write the targets of an extra as corners in pixels; values of any other form stay, for the check to refuse.

    Args:
        forms: as :func:`check_targets` returns them.
        size: width and height of the upright image.
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
    """Scale x and y of a list of points; keypoints count from the center of the first pixel, and [0, 0, 0] stays."""
    if not _are_numbers(flat) or len(flat) % step or (step == 3 and not any(flat)):
        return flat
    shift = 0.5 if step == 3 else 0.0
    return [
        value if k % step == 2 else round(value * scale[k % step] - shift, _DECIMALS) for k, value in enumerate(flat)
    ]
