"""The gpu suite of the benchmarks without a GPU: its tables run, and what they print beside their figures."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import asdict
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from grids import slow_except
from pictures import saved, smooth
from programs import run_program

from benchmarks.dataset import write_dataset
from benchmarks.gpu.expected import LOSSLESS, PREDICTED, QUALITY_90, expected, measured
from benchmarks.harness import Table
from benchmarks.options import SUITES, WITHOUT_GPU, Options
from benchmarks.report import write_json

pytest.importorskip("torchvision")
pytest.importorskip("triton")

from benchmarks.gpu import checks

ROOT = Path(__file__).resolve().parents[1]
TABLE = """
import json, sys
from benchmarks.__main__ import run_table
print(json.dumps(run_table(sys.argv[1], json.loads(sys.argv[2]))))
"""
TABLES = [name for name in SUITES["gpu"] if name not in ("compile", "peers")]  # which have tests of their own, or peers


@pytest.mark.parametrize("name", slow_except(["checks"], TABLES, mark=pytest.mark.nightly))
def test_a_table_of_the_gpu_suite_runs_without_a_gpu(name: str, tmp_path: Path) -> None:
    photographs = tmp_path / "photographs"
    (photographs / "any").mkdir(parents=True)
    for number in range(8):
        (photographs / "any" / f"{number}.jpg").write_bytes(saved(smooth(200 + number, 190), "JPEG"))
    (tmp_path / "work").mkdir()
    options = Options(photographs, tmp_path / "work", quick=True, device="cpu", seconds=1)
    printed = run_program("-c", TABLE, SUITES["gpu"][name], json.dumps(asdict(options), default=str), cwd=ROOT)
    table = Table(**json.loads(printed.splitlines()[-1]))
    assert len(table.rows) > 1
    assert [row for row in table.rows if row.get("problem") or row.get("problems")] == []
    if name == "kernels":
        assert {row["step"] for row in table.rows} >= PREDICTED[LOSSLESS].keys()
        assert [row["predicted"] for row in table.rows if row["step"] == "to_rgb"] == ["585,000 to 2,900,000"]


def test_a_conversion_that_was_broken_off_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "a.jpg").write_bytes(saved(smooth(16, 16), "JPEG"))
    options = Options(tmp_path / "photographs", tmp_path / "work")
    options.work.mkdir()
    killed = True

    def convert(command: list[Any], **_: object) -> None:
        out = Path(command[5])
        out.mkdir()
        if killed:
            (out / "0000").mkdir()
            raise KeyboardInterrupt
        (out / "picstore.json").touch()

    monkeypatch.setattr(subprocess, "run", convert)
    with pytest.raises(KeyboardInterrupt):
        write_dataset(options, copies=1)
    killed = False
    assert [path.name for path in write_dataset(options, copies=1).iterdir()] == ["picstore.json"]
    assert not list(options.work.glob("*.part"))


def test_an_nvjpeg_that_fails_leaves_the_checks_of_picstores_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = {"decoder": "picstore", "check": "any", "of": 1, "problems": 0}

    def fail(*_: object) -> list[Any]:
        raise RuntimeError("nvjpegCreate failed: 7\nmore")

    monkeypatch.setattr(checks, "on_device", lambda *_: [passed])
    monkeypatch.setattr(checks, "_check_nvjpeg", fail)
    found = checks.checks(Options(Path(), Path(), device="cpu")).rows
    assert found[0] == passed and len(found) == 2
    assert found[1]["problem"] == "nvjpegCreate failed: 7"


def test_tables_without_a_gpu_are_the_suites() -> None:
    assert SUITES["gpu"].keys() > WITHOUT_GPU


def test_the_page_has_the_predictions_and_first_figures_of_tables() -> None:
    page = (ROOT / "docs" / "archive" / "benchmarks-2026-11.md").read_text().replace("**", "")
    for name in ("decode_segments", "inverse_dct", "to_rgb", "all of decoding"):
        assert f"| {expected(name, QUALITY_90)} | {expected(name, LOSSLESS)} |" in page
        assert all(f"({measured(name, photographs)})" in page for photographs in (QUALITY_90, LOSSLESS))


def test_figures_of_a_call_join_those_of_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    for name in ("gpu a", "gpu b"):
        write_json(file, {name: Table(name, [{"case": 1}])}, {"machine": name})
    written = json.loads(file.read_text())
    assert {name: table["machine"] for name, table in written["tables"].items()} == {"gpu a": "gpu a", "gpu b": "gpu b"}
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_the_wheelhouse_holds_all_that_picstore_requires() -> None:
    """Besides what the GPU machine has, and what newer Pythons than its 3.12 do without."""
    script = (ROOT / "scripts" / "wheelhouse").read_text()
    packages = re.search(r"^packages=\((.*)\)$", script, re.MULTILINE)
    assert packages is not None
    wanted, seen = ["picstore"], set[str]()
    while wanted:
        for line in requires(wanted.pop()) or []:
            name = re.split(r"[^a-z0-9._-]", line.lower(), maxsplit=1)[0].replace(".", "-").replace("_", "-")
            if "extra ==" not in line and name not in seen | {"numpy", "numba", "pillow", "tomli"}:
                seen.add(name)
                wanted.append(name)
    assert seen | {"simplejpeg"} == set(packages[1].split())
