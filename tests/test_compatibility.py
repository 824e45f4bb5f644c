"""docs/compatibility.md has the floors of the project, and the version that reads each format."""

from __future__ import annotations

import re
from pathlib import Path

from picstore.storage.format.layout import READ_BY

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


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
