"""What differs between platforms; scripts/platforms runs the tests on those that this machine can have."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import picstore


def test_on_windows_the_import_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("picstore_on_windows", picstore.__file__)
    assert spec is not None and spec.loader is not None
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="WSL 2"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.nightly  # test.yml tests each Python
def test_the_newest_other_python_converts_shuffles_and_decodes_the_same(tmp_path: Path) -> None:
    """From wheels, and against the golden digests."""
    script = Path(__file__).parents[1] / "scripts" / "platforms.py"
    done = subprocess.run([sys.executable, script, "--fast", "--work", tmp_path], capture_output=True, text=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| 3.")]
    if not rows:
        pytest.skip("there is no other Python")
    assert done.returncode == 0 and all("| all 4 steps (" in row for row in rows), done.stdout + done.stderr
