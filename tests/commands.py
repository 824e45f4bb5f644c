"""Running the picstore command as a user does."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import picstore.cli
from picstore.storage.location.resolve import EDITS, LOCK

PICSTORE = [sys.executable, "-m", "picstore"]


def picstore_command(
    *arguments: object, code: int = 0, process: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run ``picstore ARGUMENTS`` and require its exit code.

    Args:
        process: run a new interpreter, which takes half a second of a core; for tests of what a process does with
            signals, file descriptors and imports.
        options: of ``subprocess.run``; with any of them a new interpreter runs.
    """
    words = [os.fspath(argument) if isinstance(argument, os.PathLike) else str(argument) for argument in arguments]
    if process or options:
        done = subprocess.run([*PICSTORE, *words], capture_output=True, text=True, check=False, timeout=300, **options)
    else:
        done = _in_process(words)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def _in_process(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Call the command's entry point with its output captured."""
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    handler = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, handler)
        stack.enter_context(mock.patch.object(sys, "argv", ["picstore", *words]))
        stack.enter_context(contextlib.redirect_stdout(stdout))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        with pytest.raises(SystemExit) as exit_:
            picstore.cli.main()
    printed = [stream.buffer.getvalue().decode() for stream in (stdout, stderr)]
    return subprocess.CompletedProcess(words, int(exit_.value.code or 0), *printed)


def picstore_json(*arguments: object, code: int = 0) -> Any:
    """The object that ``picstore ARGUMENTS --json`` prints."""
    return json.loads(picstore_command(*arguments, "--json", code=code).stdout)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The single line of an error on stderr, after the stages that began before it."""
    lines = said(done)
    assert len(lines) == 1, done.stderr
    return lines[0]


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr, but for those of progress."""
    return [line for line in done.stderr.splitlines() if not re.match(r"picstore \w+: |\{\"verb\": ", line)]


def tree(root: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its bytes, but for the empty one that edits lock."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path != root / EDITS / LOCK
    }


def ledger(root: Path) -> list[dict[str, Any]]:
    """The lines of a data set's ledger."""
    return [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
