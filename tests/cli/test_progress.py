"""Progress without a terminal: stages as they begin, a line each interval, JSON, and silence."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import picstore_command, said
from samples import jpeg

from picstore.display import progress
from picstore.display.progress import Bar, Lines

Make = Callable[..., Path]


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rows_of(clock: Clock, **options: Any) -> Lines:
    """A display of 1,281,000 images, of which an earlier run made 81,000, ten minutes after the rows began."""
    lines = Lines("convert", clock=clock, **options)
    clock.now += 30
    lines.begin_stage("rows")
    lines.set_total(1_281_000, 81_000)
    lines.advance(300_000)
    clock.now += 600
    return lines


def test_a_line_has_done_total_rate_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows_of(Clock())
    lines._print()
    assert capsys.readouterr().err.splitlines() == [
        "picstore convert: rows, after 30 s",
        "picstore convert: rows, 381,000 of 1,281,000 images, 500 images/s, 30 min left",
    ]


def test_a_line_of_json_has_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows_of(Clock(), as_json=True)
    lines._print()
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first == {"verb": "convert", "stage": "rows", "done": None, "total": None} | {
        "rate": None,
        "seconds": 30.0,
        "left": None,
    }
    counts = {"verb": "convert", "stage": "rows", "done": 381_000, "total": 1_281_000}
    assert second == counts | {"rate": 500.0, "seconds": 630.0, "left": 1800.0}


def test_lines_come_each_interval_though_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, enough = [], threading.Event()

    def say(line: str) -> None:
        printed.append(line)
        if len(printed) == 4:
            enough.set()

    monkeypatch.setattr(progress, "say", say)
    with Lines("convert", interval=0.001) as lines:
        lines.begin_stage("listing")
        assert enough.wait(60)
    assert not lines._thread.is_alive()
    assert set(printed) == {"picstore convert: listing"}


def test_a_verb_goes_on_where_nobody_reads_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(progress, "say", fail)
    with Lines("convert") as lines:
        lines.begin_stage("listing")


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--quiet"]])
def test_a_conversion_names_its_stages_as_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.jpg").write_bytes(jpeg(0))
    monkeypatch.setattr(progress, "INTERVAL", 1e6)
    done = picstore_command("convert", tmp_path / "photos", tmp_path / "out", "--workers", 1, *arguments)
    if arguments == ["--json"]:
        stages = [json.loads(line)["stage"] for line in done.stderr.splitlines() if line.startswith("{")]
        assert json.loads(done.stdout)["images"] == 1
    else:
        stages = re.findall(r"^picstore convert: (\w+)", done.stderr, re.MULTILINE)
    assert stages == (
        [] if arguments == ["--quiet"] else ["starting", "listing", "kernels", "sampling", "rows", "finishing"]
    )
    assert said(done) == []


@pytest.mark.slow
def test_every_long_verb_names_a_stage_and_keeps_quiet(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(6)
    shutil.copytree(path, tmp_path / "copy")
    cases: dict[str, list[object]] = {
        "verify": [path],
        "shuffle": [path, tmp_path / "shuffled"],
        "export": [path, tmp_path / "exported", "--format", "folder"],
        "repair": [tmp_path / "copy"],
        "dupes": [path],
    }
    for verb, arguments in cases.items():
        assert f"picstore {verb}: " in picstore_command(verb, *arguments).stderr
    for verb in ("verify", "repair", "dupes"):
        assert picstore_command(verb, *cases[verb], "--quiet").stderr == ""


def test_an_interactive_terminal_has_a_bar_unless_it_is_to_be_quiet(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    monkeypatch.setenv("TERM", "xterm")
    path = make_dataset(6)
    assert "━" in picstore_command("verify", path, "--workers", 1).stderr
    assert picstore_command("verify", path, "--workers", 1, "--quiet").stderr == ""


@pytest.mark.parametrize(("widgets", "kind"), [(True, Bar), (False, Lines)])
def test_a_notebook_without_ipywidgets_has_lines_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], widgets: bool, kind: type
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if widgets else None)
    progress._advise.cache_clear()
    for _ in range(2):
        display = progress.open_display("convert", True)
        assert isinstance(display, kind)
    told = capsys.readouterr().err
    assert told.count("pip install ipywidgets") == (0 if widgets else 1)
    progress._advise.cache_clear()
