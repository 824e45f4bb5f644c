"""Running the picstore command as a user does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PICSTORE = [sys.executable, "-m", "picstore.cli"]


def picstore_command(*arguments: object, code: int = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``picstore ARGUMENTS`` and require its exit code."""
    command = [*PICSTORE, *map(os.fspath, map(str, arguments))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def picstore_json(*arguments: object, code: int = 0) -> Any:
    """The object that ``picstore ARGUMENTS --json`` prints."""
    return json.loads(picstore_command(*arguments, "--json", code=code).stdout)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The single line of an error on stderr."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def tree(root: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its bytes."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def ledger(root: Path) -> list[dict[str, Any]]:
    """The lines of a data set's ledger."""
    return [json.loads(line) for line in (root / "ledger.jsonl").read_text().splitlines()]
