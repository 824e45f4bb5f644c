"""Names of classes: joining lists of names, and reading and writing names as lines of a file."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from picstore.errors import UsageError

_QUOTE = '"'


def checked_names(value: Any, argument: str) -> tuple[str, ...]:
    """Return a list of names as a tuple; raise UsageError, which names the argument, for anything else.

    A single string is refused, because Python would take it as the list of its letters.
    """
    if isinstance(value, str):
        raise UsageError(f"{argument} is {value!r}; give a list: [{value!r}]")
    given = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(each, str) for each in given):
        raise UsageError(f"{argument} is {reprlib.repr(value)}; give a list of names")
    return given


class JoinedNames:
    """Lists of class names joined to one list: the first list, followed by the new names of each further list."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)

    def add(self, names: Sequence[str]) -> tuple[int, ...]:
        """Add the names that are new to the joined list; return for each of ``names`` its index in the joined list.

        If one of the two lists begins with the whole other list, each name keeps its index, even a repeated name.
        Otherwise equal names are one class; raise UsageError if one of ``names`` occurs twice in one of the lists.
        """
        common = min(len(names), len(self.names))
        if self.names[:common] == list(names[:common]):
            self.names += names[common:]
            return tuple(range(len(names)))
        twice = {name for each in (self.names, names) for name, count in Counter(each).items() if count > 1}
        if ambiguous := sorted(twice.intersection(names)):
            raise UsageError(
                f"two classes are called {ambiguous[0]!r}, so the classes cannot be joined by name; rename one of them"
            )
        numbers = {name: number for number, name in enumerate(self.names)}
        for name in names:
            if name not in numbers:
                numbers[name] = len(self.names)
                self.names.append(name)
        return tuple(numbers[name] for name in names)


def to_lines(names: Sequence[str]) -> str:
    """Serialize class names, one per line: as they are if :func:`from_lines` can read them, else as JSON strings."""
    text = "".join(f"{name}\n" for name in names)
    if all(name and name.isprintable() and name == name.strip() and not name.startswith(_QUOTE) for name in names):
        return text
    return "".join(json.dumps(name) + "\n" for name in names)


def from_lines(text: str) -> list[str]:
    """Read class names, one per line. If all lines are JSON strings, decode them; else strip outer white space.

    Lines end with LF or CRLF. Raise UsageError if a blank line precedes a name, because skipping the line would change
    the labels of the names after it.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    if lines and all(line.startswith(_QUOTE) for line in lines):
        try:
            names = [json.loads(line) for line in lines]
        except ValueError:
            names = []
        if names and all(isinstance(name, str) for name in names):
            return names
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise UsageError(
                f"line {number} is blank; remove it, or write each name as a JSON string to keep a blank one"
            )
    return [line.strip() for line in lines]
