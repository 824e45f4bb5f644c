"""The benchmarks' harness on a trivial case, their entry, and the replacement of tables in a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.child import FailedError
from benchmarks.gate import Tree, check_out, slower
from benchmarks.harness import Case, Result, Sample, measure, tabulate
from benchmarks.report import write_sections

ROOT = Path(__file__).resolve().parents[1]


def test_cases_take_turns_and_ratios_are_to_the_first_of_their_round() -> None:
    calls: list[str] = []

    def run(name: str) -> Sample:
        calls.append(name)
        return Sample(10, 1.0 if name == "a" else 2.0, check=(1.0,))

    cases = [Case(name, run, lambda name=name: name) for name in ("a", "b")]
    results = measure(cases, rounds=2, warmups=0)
    assert calls == ["a", "b", "a", "b"]
    assert results[1].ratios == [2.0, 2.0]
    assert "| b | 5.00 | 5.00 to 5.00 | 2.00× |" in tabulate(results, "two cases", first="a").markdown()


def test_a_case_that_raises_or_computes_something_else_says_so() -> None:
    def fail(_: None) -> int:
        raise ValueError("broken")

    cases = [Case(str(n), lambda _, n=n: Sample(1, 1, check=(float(n),))) for n in (7, 7, 9)] + [Case("f", fail)]
    problems = [result.problem for result in measure(cases, rounds=1, warmups=0, tolerance=1)]
    assert problems[:2] == ["", ""]
    assert all(problems[2:])


def test_a_section_of_a_page_is_replaced_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin a b -->\nold\n<!-- end a b -->\nafter\n")
    write_sections(page, {"a b": "new"})
    assert page.read_text() == "before\n<!-- begin a b -->\n\nnew\n\n<!-- end a b -->\nafter\n"
    with pytest.raises(ValueError):
        write_sections(page, {"c": "new"})


def test_help_lists_the_suites() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "{kernels,loaders,convert,runtime,large,gpu,torture}" in text


def test_the_gate_fails_a_job_whose_median_round_takes_5_percent_longer() -> None:
    def after(*ratios: float) -> list[Result]:
        return [Result("before"), Result("after", ratios=[*ratios])]

    assert slower(after(1.04, 2.0, 0.9)) == ""
    assert slower(after(1.06, 2.0, 0.9)) == "takes 6.0% longer"
    assert slower([Result("before"), Result("after", problem="failed (x)")]) == "failed (x)"


def test_the_gate_runs_the_picstore_of_each_tree(tmp_path: Path) -> None:
    for name, level in (("before", 3), ("after", 5)):
        (tmp_path / name / "picstore").mkdir(parents=True)
        (tmp_path / name / "picstore" / "__init__.py").write_text(
            "import types, numpy\n"
            "Dataset = lambda path: [types.SimpleNamespace(jpeg=b'')] * 4\n"
            f"decode = lambda jpeg: numpy.full((2, 2), {level})\n"
        )
        sample = Tree(tmp_path / name, tmp_path, tmp_path).run("decode")
        assert (sample.items, sample.check) == (4, (level,))
    # A tree of sources alone, as ./scripts/platforms makes, has no commits.
    with pytest.raises(FailedError, match="no-such-commit" if (ROOT / ".git").exists() else "not a git repository"):
        check_out("no-such-commit", tmp_path / "none")
