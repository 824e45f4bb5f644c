"""JSON of sources, parsed as far as possible: json_value for documents, JsonItems for items of large documents."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

from picstore.prepare.sources.source_file import printable
from picstore.storage.location.text_files import text_of_file

MAX_DIGITS = 4300  # largest number of digits of an integer; the limit of Python's int()

_SPACE = re.compile(r"[ \t\n\r]*")
# Number of outer levels of lists and objects that are kept of a value nested too deep for Python's recursive decoder.
_MAX_LEVELS = 100
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)

# Python's decoder accepts NaN and Infinity, which other programs write; ``metadata`` converts both to null.
_DECODER = json.JSONDecoder()


class _RepeatedKey(ValueError):
    """Error of the fast parser if an object has a key twice; ``_decode_odd`` then parses the text again."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _RepeatedKey
    return members


_UNIQUE_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def json_object(text: bytes, skipped: Counter[str] | None = None) -> dict[str, Any] | None:
    """Parse a JSON object as :func:`json_value` does; return None if the text is damaged or is any other value."""
    try:
        value = json_value(text, skipped)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def json_value(text: bytes, skipped: Counter[str] | None = None) -> Any:
    """Parse a JSON value; raise ValueError if the text is damaged.

    Bytes that are not UTF-8 become surrogates. NaN, infinities and integers of more than 4,300 digits become NaN or
    infinite floats. If an object has a key twice, the last value is taken, and ``skipped`` counts the key. If nesting
    is too deep for the parser, all lists and objects below 100 levels become null.
    """
    try:
        return _UNIQUE_DECODER.decode(text_of_file(text))
    except RecursionError:
        shallow = _without_depth(text_of_file(text, "surrogateescape"))
        return _decode_odd(shallow.encode("utf-8", "surrogateescape"), Counter() if skipped is None else skipped)
    except ValueError:
        return _decode_odd(text, Counter() if skipped is None else skipped)


def _without_depth(text: str) -> str:
    """Replace lists and objects that are nested more than 100 levels deep by null."""
    kept, depth, end = [], 0, 0
    for match in _NESTING.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth == _MAX_LEVELS + 1:
                kept.append(text[end : match.start()])
        elif match[0] in "]}":
            if depth == _MAX_LEVELS + 1:
                kept.append("null")
                end = match.end()
            depth -= 1
    if depth > _MAX_LEVELS:
        raise ValueError("nested too deep, and not closed")
    return "".join([*kept, text[end:]])


def _decode_odd(text: bytes, skipped: Counter[str]) -> Any:
    """Parse JSON with integers of any length, repeated keys, invalid UTF-8 and a byte-order mark."""

    def last(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            skipped.update(f"key {printable(key)} that comes again in its object" for key in members if counts[key] > 1)
        return members

    def integer(digits: str) -> float:
        return int(digits) if len(digits) <= MAX_DIGITS else math.inf

    try:
        decoded = text_of_file(text, "surrogateescape")
        return json.loads(decoded, object_pairs_hook=last, parse_int=integer)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


class JsonItems:
    """JSON object with long lists, parsed item by item, because all items at once take 5 to 10 times the text's size.

    All methods raise ValueError or RecursionError if the text is not JSON. NaN and Infinity become floats.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0

    def parse(self, offset: int) -> Any:
        """Parse the value that begins at an offset of the text."""
        return _DECODER.raw_decode(self._text, offset)[0]

    def items(self, lists: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        """Read the whole document, and yield (list's name, item's offset, item) for each item of the named lists.

        Each list begins with (name, −1, None), which tells an empty list from a missing one.
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
        """Yield each member's offset, up to the bracket ``close``; the caller must parse each before the next."""
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
        """Skip white space; return the next character, one of ``characters``, and skip white space after it."""
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
