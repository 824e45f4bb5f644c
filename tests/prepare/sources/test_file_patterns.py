"""Shard names with braces."""

from __future__ import annotations

import pytest

from picstore.errors import UsageError
from picstore.prepare.sources.file_patterns import expand_braces


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}", ["a-08", "a-09", "a-10", "a-11"]),
        ("{x,y}-{0..1}", ["x-0", "x-1", "y-0", "y-1"]),
        ("{3..1}", ["3", "2", "1"]),
        ("a{b", ["a{b"]),
    ],
)
def test_braces_expand_as_a_shells(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_braces_that_stand_for_too_many_files_are_refused() -> None:
    for pattern in ("{0..99999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UsageError, match="too many files"):
            expand_braces(pattern)
