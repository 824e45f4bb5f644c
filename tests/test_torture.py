"""Short forms of the torture runs: verbs are killed, disks fail, bits flip, and nothing wrong is left.

Those that take half a minute are a script: ``python -m benchmarks torture --short``.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from grids import slow_except

from benchmarks.child import call
from benchmarks.harness import Table
from benchmarks.options import SUITES, Options

pytest.importorskip("PIL")


@pytest.mark.parametrize("part", slow_except(["kills"], ["kills", "objects", "power", "faults", "full", "flips"]))
def test_what_goes_wrong_leaves_nothing_wrong(part: str, tmp_path: Path) -> None:
    options = Options(tmp_path, tmp_path, quick=True)
    table = Table(**call("benchmarks.__main__:run_table", SUITES["torture"][part], asdict(options)))
    assert len(table.rows) > 1
    assert [row for row in table.rows if row.get("wrong") or row.get("silent") or row.get("problem")] == []


def test_the_page_has_a_place_for_every_table() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "archive" / "torture-2026-11.md").read_text()
    assert all(f"<!-- begin torture {part} -->" in page for part in SUITES["torture"])
