"""Types and bounds of the manifest's fields, in one table (docs/format.md, "Manifest"; docs/manifest.schema.json).

A JSON file may hold any type anywhere. A check raises MalformedJson, which names the wrong value, or returns None.
Checks recurse only as deep as the table; values without a check of their own are walked without recursion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from picstore.errors import UsageError, counted
from picstore.storage.format.layout import MAX_ATTACHMENTS, MAX_FILE
from picstore.storage.format.maps import MapSpec
from picstore.storage.location.resolve import EDITS, INDEX

# Largest nesting depth of a manifest's values that may have any form; Python copies and compares them by recursion.
MAX_DEPTH = 32

Check: TypeAlias = Callable[[Any], None]


class MalformedJson(ValueError):
    """Error for a JSON value of a wrong type, out of range, or with wrong members.

    ``path`` holds the keys that lead to the value, the innermost first.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.') or 'it'} {self.problem}"


def abbreviate(value: Any) -> str:
    """Describe a JSON value, of any size and depth, in at most 60 characters."""
    if isinstance(value, (dict, list)):
        kind, noun = ("an object", "member") if isinstance(value, dict) else ("a list", "item")
        return f"{kind} of {counted(len(value), noun)}"
    shown = repr(value[:60] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else shown[:59] + "…"


def integer(least: int | None = None, most: int | None = None) -> Check:
    """Return a function that raises MalformedJson unless its argument is an integer from ``least`` to ``most``."""
    expected = "an integer" if least is None else f"an integer from {least:,} to {most:,}"

    def check(value: Any) -> None:
        if type(value) is not int or (least is not None and value < least) or (most is not None and value > most):
            raise MalformedJson(f"is {abbreviate(value)}, not {expected}")

    return check


def text(pattern: str | None = None, expected: str = "text") -> Check:
    """Return a check that a value is a string, and matches ``pattern`` as a whole if a pattern is given."""
    matches = re.compile("(?s).*" if pattern is None else pattern).fullmatch

    def check(value: Any) -> None:
        if not isinstance(value, str) or not matches(value):
            raise MalformedJson(f"is {abbreviate(value)}, not {expected}")

    return check


def optional(inner: Check) -> Check:
    """Return a function that accepts null, and passes any other value to the check ``inner``."""

    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    return check


def list_of(inner: Check, most: int | None = None) -> Check:
    """Return a check that a value is a list of at most ``most`` items, which all pass the check ``inner``."""

    def check(value: Any) -> None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            raise MalformedJson(f"is {abbreviate(value)}, not a list" + (f" of at most {most} items" if most else ""))
        _check_each(value, ((number, inner) for number in range(len(value))), "[{}]")

    return check


def closed_object(members: Mapping[str, Check]) -> Check:
    """Return a check that a value is an object with exactly the given members, each of which passes its own check."""

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise MalformedJson(f"is {abbreviate(value)}, not an object")
        if value.keys() != members.keys():
            member = min(value.keys() ^ members.keys())
            raise MalformedJson(f"{'lacks' if member in members else 'has the unknown member'} {abbreviate(member)}")
        _check_each(value, members.items(), ".{}")

    return check


def open_object(required: Mapping[str, Check], possible: Mapping[str, Check] | None = None) -> Check:
    """Return a check of an object's members: all ``required`` members must be present and pass their checks.

    Members in ``possible`` must pass their checks if they are present; further members may have any form. All numbers
    must be finite, and the object may have at most 32 levels.
    """
    known = {**(possible or {}), **required}

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise MalformedJson(f"is {abbreviate(value)}, not an object")
        if missing := required.keys() - value.keys():
            raise MalformedJson(f"lacks {min(missing)!r}")
        _check_each(value, ((member, inner) for member, inner in known.items() if member in value), ".{}")
        _check_free(value)

    return check


def _check_each(values: Any, checks: Iterable[tuple[Any, Check]], form: str) -> None:
    """For each pair (key, check), run the check on ``values[key]``; if it fails, add the key to the error's path.

    ``form`` formats the key for the path: ``".{}"`` for a member's name, ``"[{}]"`` for an item's index.
    """
    key = None
    try:
        for key, inner in checks:
            inner(values[key])
    except MalformedJson as error:
        error.path.append(form.format(key))
        raise


def _check_free(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(each, float) and not math.isfinite(each) for each in level):
            raise MalformedJson("holds a number that is not finite")
        containers = [each.values() if isinstance(each, dict) else each for each in level if type(each) in (dict, list)]
        level = [inner for each in containers for inner in each]
        if not level:
            return
    raise MalformedJson(f"is more than {MAX_DEPTH} levels deep")


def _check_maps(value: Any) -> None:
    if not isinstance(value, dict) or len(value) > MAX_ATTACHMENTS:
        raise MalformedJson(f"is {abbreviate(value)}, not an object of at most {MAX_ATTACHMENTS} maps")
    _check_each(value, ((name, _check_map) for name in value), ".{}")


def _check_map(value: Any) -> None:
    if not isinstance(value, dict):
        raise MalformedJson(f"is {abbreviate(value)}, not an object")
    try:
        MapSpec.from_json(value)
    except UsageError as error:
        raise MalformedJson(str(error)) from error


UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

_U32 = integer(0, (1 << 32) - 1)
_COUNT = integer(0, MAX_FILE)
_UUID = text(UUID, "a uuid of version 8 in lower case")

_FILE = closed_object({"stream": _U32, "file": _U32, "bytes": _COUNT, "records": _COUNT, "crc32c": _U32})
_NPY_FILE = closed_object(
    {
        "file": text(rf"{EDITS}/[0-9a-f]{{16}}\.npy", "the name of a .npy file"),
        "bytes": integer(1, MAX_FILE),
        "crc32c": _U32,
    }
)
_COLUMN = closed_object(
    {
        "name": text(r"(?s).+", "a name"),
        "kind": text("numbers|text", "'numbers' or 'text'"),
        "ids": _NPY_FILE,
        "values": _NPY_FILE,
        "ends": optional(_NPY_FILE),
    }
)
_EDITS = closed_object(
    {
        "index": text(rf"{INDEX.replace('.', '[.]')}|{EDITS}/[0-9a-f]{{16}}\.idx", "the name of an index"),
        "deleted": _COUNT,
        "tombstones": optional(_NPY_FILE),
        "columns": list_of(_COLUMN),
    }
)
_ENCODE = open_object({"resize": optional(text()), "quality": integer(1, 100), "subsampling": text()})
_OUTCOME = open_object(
    {"source_bytes": _COUNT, "jpeg_bytes": _COUNT},
    dict.fromkeys(("lossless", "reencoded", "failed", "duplicate"), _COUNT),
)
_PROVENANCE = open_object(
    {},
    {
        "picstore": text(),
        "source": text(),
        "inputs": _COUNT,
        "outcome": optional(_OUTCOME),
        "appended": list_of(open_object({"inputs": _COUNT})),
        "shape": open_object({}),
        "maps": _check_maps,
    },
)
_REFERENCES = closed_object({"root": text(r"(?s).+", "a path or URL"), "foreign": _COUNT})
_FIELDS: dict[str, Check] = {
    "uuid": _UUID,
    "images": _COUNT,
    "bytes": _COUNT,
    "streams": _U32,
    "containers": _COUNT,
    "container_size": _COUNT,
    "classes": list_of(text()),
    "attachments": list_of(text(), MAX_ATTACHMENTS),
    "encode": optional(_ENCODE),
    "provenance": _PROVENANCE,
    "shuffle": list_of(open_object({"method": text(), "seed": integer(), "parent": _UUID})),
    "index_crc32c": _U32,
    "files": list_of(_FILE),
}
check_plain = closed_object(_FIELDS)
check_edited = closed_object({**_FIELDS, "edits": _EDITS})
check_referring = closed_object({**_FIELDS, "edits": optional(_EDITS), "references": _REFERENCES})
