"""JSON of sources: json_object parses a small object, JsonItems reads a large document item by item, with offsets."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

_SPACE = re.compile(r"[ \t\n\r]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def json_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for damaged text, any other value, and NaN."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class JsonItems:
    """A JSON object with members that are long lists; parsed whole it would take 5 to 10 times its size.

    All methods raise ValueError or RecursionError if the text is not JSON (RFC 8259: neither NaN nor Infinity).
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0

    def parse(self, offset: int) -> Any:
        """Parse the value that begins at an offset."""
        return _DECODER.raw_decode(self._text, offset)[0]

    def items(self, lists: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        """Read the whole document once; yields (name, offset, value) for each item of the named lists.

        Each of these lists begins with (name, −1, None), which tells an empty list from a missing one. A named member
        that is no list is skipped, as are all other members.
        """
        self._offset = 0
        self._expect("{")
        for _ in self._members("}"):
            name = self._parse_next()
            if not isinstance(name, str):
                self._fail("a name in quotes")
            self._expect(":")
            if name in lists and self._text.startswith("[", self._offset):
                self._expect("[")
                yield name, -1, None
                for offset in self._members("]"):
                    yield name, offset, self._parse_next()
            else:
                self._parse_next()
        if self._offset < len(self._text):
            self._fail("the end")

    def _members(self, close: str) -> Iterator[int]:
        """Offsets of the members up to the closing bracket; the caller parses each before it asks for the next."""
        if self._text.startswith(close, self._offset):
            self._expect(close)
            return
        separator = ","
        while separator == ",":
            yield self._offset
            separator = self._expect("," + close)

    def _parse_next(self) -> Any:
        value, end = _DECODER.raw_decode(self._text, self._offset)
        self._skip_to(end)
        return value

    def _expect(self, characters: str) -> str:
        """Pass one of these characters, and the white space on both sides of it."""
        self._skip_to(self._offset)
        found = self._text[self._offset : self._offset + 1]
        if not found or found not in characters:
            self._fail(" or ".join(characters))
        self._skip_to(self._offset + 1)
        return found

    def _skip_to(self, offset: int) -> None:
        space = _SPACE.match(self._text, offset)
        self._offset = space.end() if space else offset

    def _fail(self, expected: str) -> NoReturn:
        raise ValueError(f"{expected} expected at character {self._offset}")
