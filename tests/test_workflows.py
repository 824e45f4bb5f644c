"""The workflows of .github: small, with few rights, and calling nothing but the scripts that run here too."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml", reason="which the docs bring")
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
STEPS = [(job, step) for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


def test_workflows_run_scripts_of_the_project_alone() -> None:
    for _, step in STEPS:
        if "run" in step:
            assert re.fullmatch(r"\.ci/run|\./scripts/\w+( --[\w-]+)*", step["run"])
            assert os.access(ROOT / step["run"].split()[0], os.X_OK)


def test_workflows_have_no_rights_but_those_that_a_job_names() -> None:
    for flow in WORKFLOWS.values():
        assert flow["permissions"] == {"contents": "read"}
        for job in flow["jobs"].values():
            assert job["timeout-minutes"] <= 60
            assert set(job.get("permissions", ())) <= {"contents", "id-token", "attestations"}
    for _, step in STEPS:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/none@{'0' * 40}"))
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


def test_workflows_test_every_supported_python_on_three_systems() -> None:
    matrix: dict[str, Any] = WORKFLOWS["test.yml"]["jobs"]["light"]["strategy"]["matrix"]
    assert matrix["python"] == [f"3.{minor}" for minor in range(10, 15)]
    assert f'requires-python = ">={matrix["python"][0]}"' in (ROOT / "pyproject.toml").read_text()
    assert [system.partition("-")[0] for system in matrix["system"]] == ["ubuntu", "ubuntu", "macos"]
    assert sum(system.endswith("-arm") for system in matrix["system"]) == 1


def test_everything_that_ci_runs_is_run_by_a_workflow() -> None:
    runs = {
        name: [step["run"] for job in flow["jobs"].values() for step in job["steps"] if "run" in step]
        for name, flow in WORKFLOWS.items()
    }
    assert runs["nightly.yml"] == [".ci/run", "./scripts/test --nightly", "./scripts/numba"]
    assert [line.split()[0] for line in runs["test.yml"]] == [
        "./scripts/check",
        "./scripts/test",
        "./scripts/test",
        "./scripts/docs",
    ]
