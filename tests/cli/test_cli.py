"""The command line as a whole: help, exit codes, info, and that the documentation knows every option."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from commands import one_line, picstore_command, picstore_json

import picstore
from picstore.cli import program

GUIDE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
VERBS = program.list_commands(click.Context(program))


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_a_verb_has_help_and_is_documented(verb: str) -> None:
    command = program.get_command(click.Context(program), verb)
    assert command is not None
    assert f"\n## picstore {verb}" in GUIDE
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts} has no help"
            assert f"`{parameter.opts[0]}" in GUIDE, f"docs/cli.md lacks {parameter.opts[0]} of {verb}"


def test_help_names_every_verb_and_every_exit_code() -> None:
    text = picstore_command("--help").stdout
    for verb in VERBS:
        assert verb in text
        assert "Exit codes" in picstore_command(verb, "--help").stdout
    assert picstore_command("--version").stdout.strip().endswith(picstore.__version__)


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    picstore_command("no-such-verb", code=2)
    picstore_command("convert", code=2)
    picstore_command("shuffle", tmp_path, tmp_path, "--method", "magic", code=2)
    picstore_command("convert", tmp_path, tmp_path / "x", "--container-size", "4XB", code=2)


_SIGNAL_IN_A_CALLBACK = """
import os, signal, sys, time, weakref
from picstore import cli
set_timer, calls = signal.setitimer, []
def at_once(which, seconds):  # a busy machine, on which the timer ends in the hook that sets it
    calls.append(seconds)
    os.kill(os.getpid(), signal.SIGALRM) if len(calls) == 1 else set_timer(which, seconds)
signal.setitimer = at_once
def verb(**_):
    held = {0}
    reference = weakref.ref(held, lambda _: os.kill(os.getpid(), int(sys.argv[1])))
    del held
    time.sleep(60)
cli.program.main = verb
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_whose_exception_python_ignores_ends_a_command(number: int) -> None:
    """An import's lock has such callbacks."""
    program = [sys.executable, "-c", _SIGNAL_IN_A_CALLBACK, str(int(number))]
    ended = subprocess.run(program, capture_output=True, text=True)
    said = {signal.SIGTERM: "ended by SIGTERM", signal.SIGINT: "interrupted"}[signal.Signals(number)]
    assert (ended.returncode, ended.stderr) == (128 + number, f"picstore: {said}\n")


def test_info_tells_the_contracts_facts_as_json_and_as_text(make_dataset: Callable[..., Path]) -> None:
    path = make_dataset(40)
    facts = picstore_json("info", path)
    dataset = picstore.Dataset(path)
    assert (facts["format_version"], facts["read_by"]) == (1, "0.1.0")
    assert facts["uuid"] == dataset.uuid
    assert facts["images"] == 40
    assert facts["bytes"] == sum(file.stat().st_size for file in path.glob("*/*.pic"))
    assert (facts["streams"], facts["files"]) == (3, len(list(path.glob("*/*.pic"))))
    assert facts["containers"] == len(dataset.rows)
    assert facts["classes"] == [f"class{k}" for k in range(5)]
    assert facts["shuffle"] is None
    assert facts["order"]["records"] == 40
    ids, labels = [record.id for record in dataset], [record.label for record in dataset]
    assert facts["order"]["correlation"] == pytest.approx(np.corrcoef(ids, range(40))[0, 1])
    assert facts["order"]["expected_same_class_neighbours"] == pytest.approx(5 * 8 * 7 / (40 * 39))
    assert len(set(labels)) == 5
    text = picstore_command("info", path).stdout
    for word in (facts["uuid"], "40", "5: class0", "shuffled    no"):
        assert word in text


@pytest.mark.parametrize(("verb", "meant"), [("covert", "convert"), ("verfiy", "verify"), ("xyzzy", "")])
def test_a_misspelt_verb_or_option_is_suggested(verb: str, meant: str) -> None:
    done = picstore_command(verb, "photos", code=2)
    assert f"No such verb '{verb}'." in done.stderr
    assert ("Did you mean" in done.stderr) == bool(meant) and meant in done.stderr
    assert "--quality" in picstore_command("convert", "a", "b", "--qualty", "3", code=2).stderr


def test_info_on_anything_else_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    cases = {
        "missing": "does not exist",
        "empty": "make one with `picstore convert`",
        "file": "is a file",
        "unfinished": "--resume",
        "foreign": "belongs to another program",
        "future": "upgrade picstore",
    }
    for name in ("empty", "unfinished", "foreign", "future"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "unfinished" / "unfinished").mkdir()
    (tmp_path / "unfinished" / "unfinished" / "job.json").write_text('{"verb": "convert"}')
    (tmp_path / "foreign" / "picstore.json").write_text('{"name": "another program"}')
    (tmp_path / "future" / "picstore.json").write_text(json.dumps({"format": "picstore", "format_version": 9}))
    for name, words in cases.items():
        assert words in one_line(picstore_command("info", tmp_path / name, code=1))
