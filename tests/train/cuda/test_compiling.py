"""Kernels for GPUs compile where there is none, and spill no register on NVIDIA's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parents[3]
CODE = """
import json, sys
from pathlib import Path
from benchmarks.gpu import compiling
from benchmarks.options import Options
compiling.TARGETS = tuple(sys.argv[1:])
print(json.dumps(compiling.compiling(Options(Path("."), Path("."))).rows))
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90"])
def test_the_kernels_compile_without_a_gpu(target: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", CODE, target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["kernel"] for row in rows][:8] == [
        "make_tables",
        "decode_segments",
        "sum_differences",
        "inverse_dct",
        "to_rgb",
        "inverse_dct, 4 × 4",
        "inverse_dct, 2 × 2",
        "inverse_dct, 1 × 1",
    ]
    assert all("problem" not in row and row["registers"] > 0 and row["instructions"] > 100 for row in rows), rows
    assert not target.startswith("sm_") or all(row["spilled"] == 0 for row in rows)
    assert all(20 < row[f"{unit} a symbol"] < 400 for row in rows[1:2] for unit in ("instructions", "cycles"))
