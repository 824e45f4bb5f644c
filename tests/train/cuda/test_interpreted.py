"""Tests that interpret Triton's kernels, where this process compiles them: in a child process that sees no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def run_pytest(*arguments: str, interpret: bool) -> str:
    """What pytest prints in a child process; fails with it."""
    environment = {**os.environ, "TRITON_INTERPRET": str(int(interpret)), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=FOLDER.parents[2])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this process interprets Triton's kernels itself")
def test_what_the_interpreter_proves_holds_where_this_process_compiles() -> None:
    chosen = os.environ.get("PICSTORE_INTERPRETED", "")
    output = run_pytest(
        "-m", "interpreted and not slow", *(["-k", chosen] if chosen else []), str(FOLDER), interpret=True
    )
    assert "passed" in output


@pytest.mark.nightly  # as on a GPU, where a fast test runs all of them so
def test_a_process_that_compiles_leaves_interpreted_tests_to_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICSTORE_INTERPRETED", "test_an_image_in_place_of_a_lost_one")
    files = [str(FOLDER / name) for name in ("test_cuda_loader.py", "test_interpreted.py")]
    output = run_pytest("-rs", "-m", "not slow", *files, interpret=False)
    assert "1 passed" in output and "test_interpreted.py runs it" in output
