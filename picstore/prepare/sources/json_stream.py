"""Reading a large JSON document item by item: parsed as a whole it takes five to ten times the memory of its text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonItems:
    """A JSON object of which some members are long lists.

    All methods raise ValueError or RecursionError where the text is not JSON (RFC 8259: neither NaN nor Infinity).
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._decode = json.JSONDecoder(parse_constant=_no_constant).raw_decode

    def parse(self, at: int) -> Any:
        """The value that begins at an offset."""
        return self._decode(self._text, at)[0]

    def walk(self, lists: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        """Read the whole document once; yields (name, offset, value) of the items of the lists that are named.

        Of such a list first (name, −1, None), so that an empty one is told from none. What is named but no list is
        passed over as all other members are.
        """
        self._at = 0
        self._take("{")
        for _ in self._until("}"):
            name = self._value()
            if not isinstance(name, str):
                self._fail("a name in quotes")
            self._take(":")
            if name in lists and self._text.startswith("[", self._at):
                self._take("[")
                yield name, -1, None
                for at in self._until("]"):
                    yield name, at, self._value()
            else:
                self._value()
        if self._at < len(self._text):
            self._fail("the end")

    def _until(self, close: str) -> Iterator[int]:
        """Offsets of the members up to the closing bracket; the caller reads each before it asks for the next."""
        if self._text.startswith(close, self._at):
            self._take(close)
            return
        mark = ","
        while mark == ",":
            yield self._at
            mark = self._take("," + close)

    def _value(self) -> Any:
        value, end = self._decode(self._text, self._at)
        self._skip_to(end)
        return value

    def _take(self, characters: str) -> str:
        """Pass one of these characters, and the white space on both sides of it."""
        self._skip_to(self._at)
        found = self._text[self._at : self._at + 1]
        if not found or found not in characters:
            self._fail(" or ".join(characters))
        self._skip_to(self._at + 1)
        return found

    def _skip_to(self, at: int) -> None:
        space = _SPACE.match(self._text, at)
        self._at = space.end() if space else at

    def _fail(self, expected: str) -> NoReturn:
        raise ValueError(f"{expected} expected at character {self._at}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
