"""Parameters of a request, checked when they are read, and the filter of records that the page sends."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from picstore.errors import UsageError, counted
from picstore.jpeg.pixels import Box

_MOST = (1 << 63) - 1
_MAX_DIGITS = 20  # Largest number of digits of an integer, enough for 64 bits.
_MAX_IDS = 10_000  # Largest number of ids in a filter, where a range of ids counts as one.
_MAX_TEXT = 10_000
_SPAN = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_INTEGER = re.compile(rf"-?[0-9]{{1,{_MAX_DIGITS}}}")


class Query:
    """Parameters of a request by name. Methods convert a value, and raise UsageError if its type or range is wrong.

    Attributes:
        gone: event that is set when the client has disconnected.
    """

    def __init__(self, values: Mapping[str, str], gone: threading.Event | None = None) -> None:
        self._values = values
        self.gone = threading.Event() if gone is None else gone

    def text(self, name: str, default: str = "") -> str:
        """Return a parameter as text; raise UsageError if it has lone surrogates, which UTF-8 cannot encode."""
        text = self._values.get(name, default)
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise UsageError(f"{name} is {shortened(text)}; give Unicode text")
        return text

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = _MOST) -> int:
        """Return a parameter as an integer from ``least`` to ``most``; it may be missing only with a ``default``."""
        text = self._values.get(name, "" if default is None else str(default))
        if not _INTEGER.fullmatch(text):
            raise UsageError(f"{name} is {shortened(text)}; give an integer of at most {_MAX_DIGITS} digits")
        value = int(text)
        if not least <= value <= most:
            raise UsageError(f"{name} is {value:,}; give {least:,} to {most:,}")
        return value

    def number(self, name: str, default: float) -> float:
        text = self._values.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{name} is {shortened(text)}; give a number")
        return value

    def json(self, name: str) -> Any:
        return parse_json(name, self.text(name))

    def box(self) -> Box:
        """Return the parameters left, top, width and height of a box, in pixels of the image."""
        left, top = self.integer("left"), self.integer("top")
        return left, top, self.integer("width", least=1), self.integer("height", least=1)


def parse_json(name: str, text: str) -> Any:
    """Parse JSON; raise UsageError if an integer has more than 64 bits or a string is not valid Unicode."""
    try:
        value = json.loads(text, parse_int=_bounded_integer)
        # Check all strings: encoding them as UTF-8 raises an error if one has lone surrogates.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the {name} is not JSON: {str(error)[:200]}") from error
    return value


def _bounded_integer(digits: str) -> int:
    value = int(digits) if len(digits) <= _MAX_DIGITS else _MOST + 1 << 1
    if not -_MOST - 1 <= value < 1 << 64:
        raise ValueError(f"{shortened(digits)} has more than 64 bits")
    return value


def shortened(text: str) -> str:
    """Return the first 60 characters of a string for an error message, in quotes and with escapes, as ASCII."""
    return ascii(text if len(text) <= 60 else f"{text[:60]}…")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a record must all meet to be selected; an empty condition selects all records.

    Attributes:
        labels, samplings: allowed labels and allowed chroma samplings of a record.
        ids: allowed ids, as ranges that include both ends.
        ranges: (name, minimum, maximum) of numeric columns; None for no limit.
        text: text that must occur in the class name, in a string column or in the extra; case is ignored.
        where: condition on the record's columns, in SQL.
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
    """Parse a filter as the page sends it: a JSON object whose members are attributes of :class:`Filter`.

    ``ids`` is a string such as ``"7, 100-200"``; ``ranges`` is an object that maps columns to ``[minimum, maximum]``.

    Raises:
        UsageError: the text is not such an object, or a member has an invalid value.
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
    """Parse ids and inclusive ranges of ids, such as ``"7, 100-200"``; raise UsageError for any other element."""
    spans = []
    for part in filter(None, re.split(r"[,;\s]+", re.sub(r"\s*-\s*", "-", text))):
        match = _SPAN.fullmatch(part)
        if match is None:
            raise UsageError(f"ids: {shortened(part)} is neither a number nor a range; write 7 or 100-200")
        first = int(match[1])
        last = int(match[2] or first)
        if max(first, last) >= 1 << 64:
            raise UsageError(f"ids: {shortened(part)} is too large; an id has at most 64 bits")
        spans.append((first, last))
    if len(spans) > _MAX_IDS:
        raise UsageError(f"{counted(len(spans), 'id')}; at most {_MAX_IDS:,} are possible, or a condition")
    return tuple(spans)


def _text_of(given: dict[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise UsageError(f"{name} is not a text of at most {_MAX_TEXT:,} characters")
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
    if not known or not all(each is None or (type(each) in (int, float) and math.isfinite(each)) for each in bounds):
        raise UsageError(
            f"the range of {shortened(name)} is {shortened(repr(bounds))}; give two numbers, null for no limit"
        )
    return bounds[0], bounds[1]
