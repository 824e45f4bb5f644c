"""Filters of the page: which records it shows, as parsed from a request."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from picstore.errors import UsageError
from picstore.viewer.queries import parse_json, shortened

_MAX_IDS = 10_000  # that a filter may list
_MAX_TEXT = 10_000  # characters of a condition or of a text to look for
_SPAN = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that all hold for a record; one that is empty holds for all.

    Attributes:
        labels, samplings: values of which a record has one.
        ids: inclusive ranges, of which one holds a record's id.
        ranges: name of a column of numbers, and its least and greatest value, None for no limit.
        text: part of the name of its class or of a text in a column, in small or capital letters.
        where: condition in SQL.
    """

    labels: tuple[int, ...] = ()
    samplings: tuple[str, ...] = ()
    ids: tuple[tuple[int, int], ...] = ()
    ranges: tuple[tuple[str, float | None, float | None], ...] = ()
    text: str = ""
    where: str = ""

    def __bool__(self) -> bool:
        return self != Filter()


def parse_filter(text: str) -> Filter:
    """Parse a filter as the page writes it: a JSON object with members named as the attributes.

    ``ids`` is a text such as ``"7, 100-200"``, ``ranges`` an object of ``[least, greatest]`` by column.

    Raises:
        UsageError: it is none.
    """
    if not text:
        return Filter()
    given = parse_json("filter", text)
    if not isinstance(given, dict) or set(given) - set(Filter.__slots__):
        raise UsageError(f"filter is {shortened(text)}; give an object with members of {', '.join(Filter.__slots__)}")
    ranges = given.get("ranges", {})
    if not isinstance(ranges, dict):
        raise UsageError(f"ranges is {shortened(repr(ranges))}; give an object of pairs by column")
    return Filter(
        labels=tuple(_list_of(given, "labels", int)),
        samplings=tuple(_list_of(given, "samplings", str)),
        ids=parse_ids(_text_of(given, "ids")),
        ranges=tuple((name, *_range_of(name, bounds)) for name, bounds in ranges.items()),
        text=_text_of(given, "text"),
        where=_text_of(given, "where").strip(),
    )


def parse_ids(text: str) -> tuple[tuple[int, int], ...]:
    """Parse ids and inclusive ranges of ids, ``"7, 100-200"``; UsageError for anything else."""
    spans = []
    for part in filter(None, re.split(r"[,;\s]+", re.sub(r"\s*-\s*", "-", text))):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise UsageError(f"ids: {shortened(part)} is no number and no range; write 7 or 100-200")
        first = int(match[1])
        last = int(match[2] or first)
        if max(first, last) >= 1 << 64:
            raise UsageError(f"ids: {shortened(part)} is too large; an id has at most 64 bits")
        spans.append((first, last))
    if len(spans) > _MAX_IDS:
        raise UsageError(f"{len(spans):,} ids; at most {_MAX_IDS:,} are possible, or a condition")
    return tuple(spans)


def _text_of(given: dict[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise UsageError(f"{name} is no text of at most {_MAX_TEXT:,} characters")
    return value


def _list_of(given: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = given.get(name, [])
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise UsageError(f"{name} is {shortened(repr(values))}; give a list of {kind.__name__}")
    if kind is int and any(value >= 1 << 63 for value in values):
        raise UsageError(f"{name} has {max(values)}; give numbers of at most 63 bits")
    return values


def _range_of(name: str, bounds: Any) -> tuple[float | None, float | None]:
    known = isinstance(bounds, list) and len(bounds) == 2
    if not known or not all(bound is None or _is_number(bound) for bound in bounds):
        raise UsageError(
            f"the range of {shortened(name)} is {shortened(repr(bounds))}; give two numbers, null for no limit"
        )
    return bounds[0], bounds[1]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
