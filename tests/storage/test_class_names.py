"""Class names: joined by name, and written as lines of a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore.errors import UsageError
from picstore.storage.class_names import JoinedNames, from_lines, to_lines

NAMES = st.lists(st.text() | st.sampled_from(["cat", " dog", "a\tb", "\u2028", "", '"', "\ufeff", "x\r", "\ud800"]))


@given(NAMES)
def test_any_names_are_read_from_lines_as_they_were_written(names: list[str]) -> None:
    text = to_lines(names).encode().decode("utf-8-sig")
    assert from_lines(text) == names
    assert len(text.splitlines()) == len(names)


def test_names_that_text_can_hold_are_plain_lines() -> None:
    assert to_lines(["red fox", "café", "3"]) == "red fox\ncafé\n3\n"
    assert to_lines(["red fox", " "]) == '"red fox"\n" "\n'


def test_lines_of_other_writers_are_read_without_outer_blanks() -> None:
    assert from_lines("cat \r\n\tdog\r\n\n\n") == ["cat", "dog"]
    assert from_lines('"big" cat\n"dog"') == ['"big" cat', '"dog"']
    with pytest.raises(UsageError, match="line 2 is blank; remove it"):
        from_lines("cat\n\ndog\n")


@given(st.lists(st.lists(st.sampled_from("abcde"), unique=True)))
def test_lists_are_joined_so_that_each_number_keeps_its_name(lists: list[list[str]]) -> None:
    joined = JoinedNames()
    numbers = [joined.add(names) for names in lists]
    assert len(set(joined.names)) == len(joined.names)
    for names, found in zip(lists, numbers, strict=True):
        assert [joined.names[number] for number in found] == names
    assert joined.names[: len(lists[0]) if lists else 0] == (lists[0] if lists else [])


def test_classes_of_one_name_are_joined_only_where_numbers_tell_them_apart() -> None:
    joined = JoinedNames(["cells", "cells"])
    assert joined.add(["cells", "cells", "dust"]) == (0, 1, 2)
    assert joined.add(["hair", "dust"]) == (3, 2)
    with pytest.raises(UsageError, match="two classes are called 'cells'"):
        joined.add(["dust", "cells"])
    with pytest.raises(UsageError, match="two classes are called 'a'"):
        JoinedNames(["b"]).add(["a", "a"])
