"""Parameters of a request, checked."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Mapping
from typing import Any

from picstore.errors import UsageError
from picstore.jpeg.pixels import Box

_MOST = (1 << 63) - 1
_MAX_DIGITS = 20  # of 64 bits
_INTEGER = re.compile(rf"-?[0-9]{{1,{_MAX_DIGITS}}}")


class Query:
    """Parameters of a request by name; UsageError for one of another type or range.

    Attributes:
        gone: set when the client has gone, so that nobody waits for the answer.
    """

    def __init__(self, values: Mapping[str, str], gone: threading.Event | None = None) -> None:
        self._values = values
        self.gone = threading.Event() if gone is None else gone

    def text(self, name: str, default: str = "") -> str:
        """A text without halves of UTF-16 pairs."""
        text = self._values.get(name, default)
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise UsageError(f"{name} is {shortened(text)}; give Unicode text")
        return text

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = _MOST) -> int:
        """An integer in a range; without a default it is required."""
        text = self._values.get(name, "" if default is None else str(default))
        if not _INTEGER.fullmatch(text):
            raise UsageError(f"{name} is {shortened(text)}; give an integer of at most {_MAX_DIGITS} digits")
        value = int(text)
        if not least <= value <= most:
            raise UsageError(f"{name} is {value:,}; give {least:,} to {most:,}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        text = self._values.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{name} is {shortened(text)}; give a number")
        return value

    def json(self, name: str) -> Any:
        """The value of a text in JSON; see :func:`parse_json`."""
        return parse_json(name, self.text(name))

    def box(self) -> Box:
        """Left, top, width and height."""
        left, top = self.integer("left"), self.integer("top")
        return left, top, self.integer("width", least=1), self.integer("height", least=1)


def parse_json(name: str, text: str) -> Any:
    """Parse JSON of a request, with integers of 64 bits at most and Unicode texts; UsageError for any other."""
    try:
        value = json.loads(text, parse_int=_bounded_integer)
        json.dumps(value, ensure_ascii=False).encode()  # refuses halves of UTF-16 pairs
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the {name} is no JSON: {str(error)[:200]}") from error
    return value


def _bounded_integer(digits: str) -> int:
    value = int(digits) if len(digits) <= _MAX_DIGITS else _MOST + 1 << 1
    if not -_MOST - 1 <= value < 1 << 64:
        raise ValueError(f"{shortened(digits)} has more than 64 bits")
    return value


def shortened(text: str) -> str:
    """A text in quotes for a message, escaped, and cut off after 60 characters."""
    return ascii(text if len(text) <= 60 else f"{text[:60]}…")
