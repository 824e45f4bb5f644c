"""Types of parsed JSON: composable checks that name the value that does not hold, for tables of fields.

JSON from a file may hold any type anywhere. A check raises MalformedJson or returns nothing. It recurses as deep as its
table does; free values are walked without recursion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

MAX_DEPTH = 32  # levels of free values, whose copying, printing and comparing recurse

Check: TypeAlias = Callable[[Any], None]


class MalformedJson(ValueError):
    """A value has another type, range or set of members than its table says.

    Attributes:
        path: the members and items that lead to it, the outermost last.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path)).lstrip('.') or 'it'} {self.problem}"


def abbreviate(value: Any) -> str:
    """Describe a JSON value of any size and depth in at most 60 characters."""
    if isinstance(value, (dict, list)):
        return f"an object of {len(value)} members" if isinstance(value, dict) else f"a list of {len(value)} items"
    shown = repr(value[:60] if isinstance(value, str) else value)
    return shown if len(shown) <= 60 else shown[:59] + "…"


def integer(least: int | None = None, most: int | None = None) -> Check:
    """An integer in a range; true and false are none."""
    expected = "an integer" if least is None else f"an integer from {least:,} to {most:,}"

    def check(value: Any) -> None:
        if type(value) is not int or (least is not None and value < least) or (most is not None and value > most):
            raise MalformedJson(f"is {abbreviate(value)}, not {expected}")

    return check


def text(pattern: str | None = None, expected: str = "text") -> Check:
    """A string, all of which matches the pattern, if there is one."""
    matches = re.compile("(?s).*" if pattern is None else pattern).fullmatch

    def check(value: Any) -> None:
        if not isinstance(value, str) or not matches(value):
            raise MalformedJson(f"is {abbreviate(value)}, not {expected}")

    return check


def optional(inner: Check) -> Check:
    """A null, or a value that holds another check."""

    def check(value: Any) -> None:
        if value is not None:
            inner(value)

    return check


def list_of(inner: Check, most: int | None = None) -> Check:
    """A list, each item of which holds a check."""

    def check(value: Any) -> None:
        if not isinstance(value, list) or (most is not None and len(value) > most):
            raise MalformedJson(f"is {abbreviate(value)}, not a list" + (f" of at most {most} items" if most else ""))
        _check_each(value, ((number, inner) for number in range(len(value))), "[{}]")

    return check


def closed_object(members: Mapping[str, Check]) -> Check:
    """An object of exactly these members."""

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise MalformedJson(f"is {abbreviate(value)}, not an object")
        if value.keys() != members.keys():
            member = min(value.keys() ^ members.keys())
            raise MalformedJson(f"{'lacks' if member in members else 'has the unknown member'} {abbreviate(member)}")
        _check_each(value, members.items(), ".{}")

    return check


def open_object(required: Mapping[str, Check], possible: Mapping[str, Check] | None = None) -> Check:
    """An object whose known members hold their checks; others are free, of finite numbers, at most 32 levels deep."""
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
    """Check members or items by their keys, which messages write in a form."""
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
