"""Deprecated things warn for two minor versions, and leave then; docs/compatibility.md has today's versions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import picstore
from picstore.deprecation import deprecation, removal, warn_deprecated
from picstore.storage.format.layout import READ_BY

PACKAGE = Path(picstore.__file__).parent
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def old_name() -> int:
    warn_deprecated("picstore.old_name()", since="0.2", instead="call picstore.new_name()")
    return 7


def deprecated_since(source: str) -> list[str]:
    """The versions that a module's calls of the helpers name."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    named = (call for call in calls if isinstance(call.func, ast.Name))
    return [
        ast.literal_eval(keyword.value)
        for call in named
        if call.func.id in ("deprecation", "warn_deprecated")
        for keyword in call.keywords
        if keyword.arg == "since"
    ]


def is_overdue(since: str, version: str) -> bool:
    return tuple(map(int, version.split(".")[:2])) >= tuple(map(int, removal(since).split(".")))


def test_a_deprecated_name_works_and_warns_where_it_is_used() -> None:
    text = r"picstore.old_name\(\) is deprecated since picstore 0.2 and leaves with 0.4; call picstore.new_name\(\)"
    with pytest.warns(DeprecationWarning, match=text) as warned:
        assert old_name() == 7
    assert warned[0].filename == __file__
    assert deprecation("--old", since="1.9", instead="write --new").endswith("leaves with 1.11; write --new")


def test_what_is_deprecated_leaves_after_two_minor_versions() -> None:
    assert deprecated_since('warn_deprecated("x", since="0.2", instead="y")') == ["0.2"]
    assert [is_overdue("0.2", version) for version in ("0.2.0", "0.3.9", "0.4.0", "1.0.0")] == [
        False,
        False,
        True,
        True,
    ]
    for path in PACKAGE.rglob("*.py"):
        if path.name != "deprecation.py":
            for since in deprecated_since(path.read_text()):
                assert not is_overdue(since, picstore.__version__), f"{path}: deprecated since {since}"


def test_the_page_on_compatibility_has_the_floors_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    floors = dict(re.findall(r"^\| (\w+)[^|]* \| ([\d.]+) \|$", PAGE.partition("## Python")[2], re.MULTILINE))
    assert f'requires-python = ">={floors.pop("Python")}"' in text
    assert set(floors) == {"numpy", "numba", "pillow", "torch"}
    for name, floor in floors.items():
        assert f'"{name}>={floor}' in text


def test_the_page_on_compatibility_says_which_version_reads_each_format() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert {int(number): version for number, version in rows} == READ_BY
