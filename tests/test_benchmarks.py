"""The benchmarks' harness on a trivial case, their entry, and the replacement of tables in a page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from pictures import saved, smooth

from benchmarks.child import FailedError, call
from benchmarks.convert.imagenet import QUICK, imagenet
from benchmarks.convert.imagenet_tars import class_starts, read_pool, write_pool, write_tars
from benchmarks.gate import Tree, check_out, slower
from benchmarks.harness import Case, Result, Sample, Table, measure, tabulate
from benchmarks.options import SUITES, Options
from benchmarks.report import write_sections
from benchmarks.usage import measure_command
from picstore.prepare.sources.imagenet_tars import list_imagenet
from picstore.prepare.sources.inputs import read_input
from picstore.storage.location.resolve import locate

ROOT = Path(__file__).resolve().parents[1]


def test_cases_take_turns_and_ratios_are_to_the_first_of_their_round() -> None:
    calls: list[str] = []

    def run(name: str) -> Sample:
        calls.append(name)
        return Sample(10, 1.0 if name == "a" else 2.0, check=(1.0,))

    cases = [Case(name, run, partial(str, name)) for name in ("a", "b")]
    results = measure(cases, rounds=2, warmups=0)
    assert calls == ["a", "b", "a", "b"]
    assert results[1].ratios == [2.0, 2.0]
    assert "| b | 5.00 | 5.00 to 5.00 | 2.00× |" in tabulate(results, "two cases", first="a").markdown()


def test_a_case_that_raises_or_computes_something_else_says_so() -> None:
    def give(n: int, _: None) -> Sample:
        return Sample(1, 1, check=(float(n),))

    def fail(_: None) -> int:
        raise ValueError("broken")

    cases = [Case(str(n), partial(give, n)) for n in (7, 7, 9)] + [Case("f", fail)]
    problems = [result.problem for result in measure(cases, rounds=1, warmups=0, tolerance=1)]
    assert problems[:2] == ["", ""]
    assert all(problems[2:])


def test_a_section_of_a_page_is_replaced_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin a b -->\nold\n<!-- end a b -->\nafter\n")
    write_sections(page, {"a b": "new"})
    assert page.read_text() == "before\n<!-- begin a b -->\n\nnew\n\n<!-- end a b -->\nafter\n"
    with pytest.raises(ValueError, match="markers of c 0 times"):
        write_sections(page, {"c": "new"})


def test_help_lists_the_suites() -> None:
    command = [sys.executable, "-m", "benchmarks", "--help"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "{kernels,loaders,convert,runtime,large,map,maps,gpu,torture}" in text


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


_SPENDING = """
import os, subprocess, sys, time
held = bytearray(100 << 20)
spend = "import time\\nwhile time.process_time() < 0.4: pass"
subprocess.Popen([sys.executable, "-c", spend])
time.sleep(0.6)  # a sample of the memory
os.kill(os.getpid(), 9)
"""


def test_usage_counts_what_outlives_its_parent() -> None:
    used = measure_command([sys.executable, "-c", _SPENDING], limit=60)
    assert (used.status, used.left) == (-9, 0)
    assert used.cpu >= 0.4
    assert 100 < used.largest < 200
    assert used.together > 100


def test_usage_counts_bytes_and_keeps_what_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    program = f"open({str(file)!r}, 'wb').write(bytes(3 << 20)); open({str(file)!r}, 'rb').read(); print('done')"
    used = measure_command([sys.executable, "-c", program], limit=60)
    assert (used.status, used.output) == (0, "done\n")
    assert 3 << 20 <= used.written < 4 << 20
    assert 3 << 20 <= used.read < 8 << 20


def _write_photographs(folder: Path) -> Path:
    (folder / "photographs").mkdir()
    for number in range(7):
        (folder / "photographs" / f"{number}.jpg").write_bytes(saved(smooth(200 + number, 190), "JPEG"))
    return folder / "photographs"


def test_tars_of_a_rehearsal_hold_each_picture_once_more(tmp_path: Path) -> None:
    write_pool(_write_photographs(tmp_path), tmp_path / "pool")
    size = write_tars(str(tmp_path / "pool"), str(tmp_path / "tars"), 50, 3)
    listing = list_imagenet(locate(tmp_path / "tars"))
    assert [one.label for one in listing.inputs] == [0] * 16 + [1] * 17 + [2] * 17
    assert class_starts(50, 3) == [0, 16, 33, 50]
    jpegs, pool = [read_input(one) for one in listing.inputs], read_pool(tmp_path / "pool")
    assert sum(map(len, jpegs)) == size
    assert len(set(jpegs)) == 50
    assert all(jpeg[-1000:] == pool[number % 7][-1000:] for number, jpeg in enumerate(jpegs))


def test_a_rehearsal_without_room_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "benchmarks", "convert", str(_write_photographs(tmp_path)), "--only", "imagenet"]
    command += ["--images", str(10**9)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "GB are needed at a time" in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.nightly
def test_a_rehearsal_gets_through_all_its_stages(tmp_path: Path) -> None:
    options = Options(_write_photographs(tmp_path), tmp_path / "work", quick=True)
    table = Table(**call("benchmarks.__main__:run_table", SUITES["convert"]["imagenet"], asdict(options)))
    assert [row["problem"] for row in table.rows if "problem" in row] == []
    assert [row["stage"] for row in table.rows][-1] == "first batch"
    assert table.rows[1]["images/s"] == pytest.approx(QUICK / table.rows[1]["s"])
    assert not (tmp_path / "work" / "imagenet" / "tars").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rehearsal_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "benchmarks", "convert", str(_write_photographs(tmp_path)), "--only", "imagenet"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen([*command, "--images", "20000"], cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (begun := [*tmp_path.glob("temporary/*/imagenet/converted")]) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60)
    assert begun
    assert [*(tmp_path / "temporary").iterdir()] == []
    left = [path for path in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _command_of(path)]
    assert left == []


def _command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_a_rehearsal_ends_at_a_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(_write_photographs(tmp_path), tmp_path / "work", quick=True)
    monkeypatch.setattr(sys, "executable", "false")
    (row,) = imagenet(options).rows
    assert (row["stage"], row["problem"][:6]) == ("tars", "failed")
