"""Generated inputs of every reader: accepted or refused, never another exception, a difference, or seconds of work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.py"


def fuzz(inputs: int, work: Path, *, seed: int) -> None:
    command = [sys.executable, str(RUN), "all", str(inputs), "--seed", str(seed), "--work", str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-3000:]}{done.stderr[-2000:]}"
    for result in json.loads(done.stdout):
        assert result["inputs"] == inputs
        assert inputs // 20 < result["accepted"] < inputs, f"inputs of {result['target']} are all alike"


@pytest.mark.slow
def test_generated_inputs_are_accepted_or_refused_by_every_reader(tmp_path: Path) -> None:
    fuzz(20, tmp_path, seed=1)  # scripts/fuzz, which CI runs too, takes a minute for each reader


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in (RUN.parent / "corpus").rglob("*") if path.is_file()]
    assert sum(sizes) < 300_000
