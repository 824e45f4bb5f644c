"""Reports of tables: Markdown on stdout, JSON, and the tables of docs/benchmarks.md between their markers."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import Table

WIDTH = 120  # columns of the prose


def section(table: Table, *, command: str, date: str, machine: str) -> str:
    """A table below the line that dates it and names command and machine."""
    about = textwrap.fill(
        f"`{command}`, {date}, {machine}; {table.about}", WIDTH, break_long_words=False, break_on_hyphens=False
    )
    return f"{about}\n\n{table.markdown()}"


def write_sections(page: Path, sections: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` for each section's name.

    Raises:
        ValueError: the page lacks the markers of a section.
    """
    text = page.read_text()
    for name, content in sections.items():
        pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, new=content: f"{found[1]}\n{new}\n\n{found[2]}", text)
        if count != 1:
            raise ValueError(f"{page} has the markers of {name} {count} times, not once")
    page.write_text(text)


def write_json(file: Path, tables: Mapping[str, Table], about: Mapping[str, Any]) -> None:
    """Write every sample and every row, beside the tables that earlier calls wrote to the file."""
    earlier = json.loads(file.read_text())["tables"] if file.exists() else {}
    found = earlier | {name: {**asdict(table), **about} for name, table in tables.items()}
    written = file.with_name(f"{file.name}.new")
    written.write_text(json.dumps({**about, "tables": found}, indent=2, ensure_ascii=False, default=str) + "\n")
    written.replace(file)
