"""Parameters of a request, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from picstore.errors import UsageError
from picstore.jpeg.pixels import Box

_MOST = (1 << 63) - 1


class Query:
    """Parameters of a request by name; UsageError for one of another type or range."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """A text."""
        return self._values.get(name, default)

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = _MOST) -> int:
        """An integer in a range; without a default it is required."""
        text = self._values.get(name, "" if default is None else str(default))
        try:
            value = int(text)
        except ValueError as error:
            raise UsageError(f"{name} is {text!r}, not an integer") from error
        if not least <= value <= most:
            raise UsageError(f"{name} is {value:,}; it lies in {least:,} to {most:,}")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        text = self._values.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"{name} is {text!r}, not a number")
        return value

    def box(self) -> Box:
        """Left, top, width and height."""
        left, top = self.integer("left"), self.integer("top")
        return left, top, self.integer("width", least=1), self.integer("height", least=1)
