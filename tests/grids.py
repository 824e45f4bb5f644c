"""Cases of parametrized tests of which a default run takes a part, and CI all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(default: Iterable[Any], cases: Iterable[Any], *, when: bool = True) -> list[Any]:
    """The cases, marked ``slow`` but for those of a default run.

    Args:
        when: False marks none.
    """
    cases, default = list(cases), list(default)
    unknown = [case for case in default if case not in cases]
    assert not unknown, f"not among the cases: {unknown}"
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.slow] if when and case not in default else []
        marked.append(pytest.param(*values, marks=marks))
    return marked
