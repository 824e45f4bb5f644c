"""Kernels for GPUs compile where there is none, and spill no register on NVIDIA's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
# Two thirds of the time of all; each kernel is there in another variant.
VARIANTS = ["inverse_dct", *(f"inverse_dct, {side} × {side}" for side in (4, 1))]
VARIANTS += ["run_phase, uint8", "run_phase, a later one", "run_phase, with a canvas"]
DECODING = ["make_tables", "decode_segments", "sum_differences", "inverse_dct", "to_rgb"]
DECODING += [f"inverse_dct, {side} × {side}" for side in (4, 2, 1)]
ROOT = Path(__file__).parents[3]
CODE = """
import json, sys
from pathlib import Path
from benchmarks.gpu import compiling
from benchmarks.options import Options
target, *left_out = sys.argv[1:]
compiling.TARGETS = (target,)
augmentation, decoding = compiling._augmentation, compiling._decoding
compiling._augmentation = lambda: [each for each in augmentation() if each[0] not in left_out]
compiling._decoding = lambda: [each for each in decoding() if each[0] not in left_out]
print(json.dumps(compiling.compiling(Options(Path("."), Path("."))).rows))
"""


@pytest.mark.parametrize(
    ("target", "left_out"),
    [
        pytest.param("sm_90", VARIANTS, marks=pytest.mark.slow, id="some"),
        pytest.param("sm_90", [], marks=pytest.mark.nightly, id="all"),
    ],
)
def test_the_kernels_compile_without_a_gpu(target: str, left_out: list[str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", CODE, target, *left_out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    expected = [name for name in DECODING if name not in left_out]
    assert [row["kernel"] for row in rows][: len(expected)] == expected
    assert len(rows) + len(left_out) == 16
    assert all("problem" not in row and row["registers"] > 0 and row["instructions"] > 100 for row in rows), rows
    assert not target.startswith("sm_") or all(row["spilled"] == 0 for row in rows)
    assert all(20 < row[f"{unit} a symbol"] < 400 for row in rows[1:2] for unit in ("instructions", "cycles"))
