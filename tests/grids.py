"""What a run takes a part of, and the nightly one all: cases of parametrized tests, and examples of Hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

# The time of an example depends on the machine more than on the code.
settings.register_profile("default run", deadline=None, max_examples=15)
settings.register_profile("all", deadline=None, max_examples=50)
settings.register_profile("nightly", deadline=None, max_examples=100)


def load_profile(markers: str) -> None:
    """Choose how many examples Hypothesis tries, by pytest's option -m."""
    settings.load_profile({"not slow": "default run", "nightly or hypothesis": "nightly"}.get(markers, "all"))


def slow_except(
    default: Iterable[Any], cases: Iterable[Any], *, when: bool = True, mark: pytest.MarkDecorator = pytest.mark.slow
) -> list[Any]:
    """The cases, marked ``slow`` but for those of a default run.

    Args:
        when: False marks none.
        mark: marks them otherwise.
    """
    cases, default = list(cases), list(default)
    unknown = [case for case in default if case not in cases]
    assert not unknown, f"not among the cases: {unknown}"
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = [mark] if when and case not in default else []
        marked.append(pytest.param(*values, marks=marks))
    return marked


def examples(count: int) -> settings:
    """Settings of a property of which the nightly run tries ``count`` examples, CI a half, a default run a seventh."""
    default = settings.default
    assert default is not None
    return settings(max_examples=max(count * default.max_examples // 100, 1))
