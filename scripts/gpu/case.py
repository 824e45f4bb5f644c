"""Cases: what is measured, one row of a table each, and how they share the time of their part."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]

LONGEST = 4.0  # seconds that one figure is measured
SHORTEST = 0.3
SHARE = 0.5  # of a case's time that is measured; the rest goes into starting and warming up


@dataclass(frozen=True)
class Case:
    """One row, or several.

    Attributes:
        table: its title.
        names: the first cells of the row.
        measure: takes the seconds to measure for, and returns further cells; of several rows where it is a list.
        weight: how many times as much time as others it needs.
    """

    table: str
    names: Row
    measure: Callable[[float], Row | list[Row]]
    weight: float = 1.0


@dataclass
class Results:
    """The rows of a part, in a file after each of them, so that a process that dies leaves what it has found."""

    file: Path
    rows: list[Row] = field(default_factory=list)

    def add(self, table: str, row: Row) -> None:
        """Keep a row, and show it."""
        self.rows.append({"table": table, **row})
        self.file.write_text(json.dumps(self.rows))
        cells = ", ".join(f"{name} {shown(value)}".strip() for name, value in row.items())
        sys.stderr.write(f"{table}: {cells}\n")


def run_cases(cases: Sequence[Case], *, seconds: float, file: Path) -> None:
    """Measure one after the other, in all about so many seconds; what fails says so in its row."""
    results, end = Results(file), time.perf_counter() + seconds
    for number, case in enumerate(cases):
        left = end - time.perf_counter()
        if left <= 0:
            results.add(case.table, {**case.names, "problem": "left out, as there was no time"})
            continue
        share = left * case.weight / sum(other.weight for other in cases[number:])
        try:
            found = case.measure(min(LONGEST, max(SHORTEST, SHARE * share)))
        except Exception as error:  # whatever it is, the other cases go on
            found = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        for row in found if isinstance(found, list) else [found]:
            results.add(case.table, {**case.names, **row})


def tables(rows: Sequence[Row]) -> str:
    """Rows as Markdown, one table for each title."""
    lines = []
    for title in dict.fromkeys(row["table"] for row in rows):
        chosen = [row for row in rows if row["table"] == title]
        columns = list(dict.fromkeys(name for row in chosen for name in row if name != "table"))
        lines += [f"## {title}", "", line_of(columns), line_of(["---"] * len(columns))]
        lines += [line_of([shown(row.get(name)) for name in columns]) for row in chosen]
        lines.append("")
    return "\n".join(lines)


def line_of(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def shown(value: Any) -> str:
    """A cell."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.3g}"
