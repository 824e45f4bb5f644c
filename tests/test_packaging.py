"""What is installed: extras, pinned versions, and the steps of the Dockerfile. scripts/package installs for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from picstore.cli import program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
REQUIREMENTS = [requirement for requirement in REQUIREMENTS if requirement.name != "picstore"]  # an extra in another


def dockerfile() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def commands() -> list[list[str]]:
    """The words of each command of each RUN."""
    lines = [line for name, line in dockerfile() if name == "RUN"]
    return [shlex.split(command) for line in lines for command in line.split("&&")]


def locked() -> list[tuple[Requirement, list[str]]]:
    """The pins of constraints.txt with their hashes."""
    lines = (ROOT / "constraints.txt").read_text().replace("\\\n", "").splitlines()
    pairs = [line.partition(" --hash=") for line in lines]
    return [(Requirement(pin.strip()), re.split(r"\s+--hash=", hashes)) for pin, _, hashes in pairs]


def install_command() -> list[str]:
    """The Dockerfile's command that installs picstore."""
    (install,) = [command for command in commands() if command[:3] == ["uv", "pip", "install"]]
    return install


def test_constraints_have_a_hash_of_every_pin() -> None:
    for pin, hashes in locked():
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), pin


def test_constraints_pin_every_requirement_to_a_version_that_it_allows() -> None:
    pins = [pin for pin, _ in locked()]
    assert all(pin.url is None and [each.operator for each in pin.specifier] == ["=="] for pin in pins)
    for requirement in REQUIREMENTS:
        name = canonicalize_name(requirement.name)
        versions = [each.version for pin in pins if canonicalize_name(pin.name) == name for each in pin.specifier]
        assert versions, f"run ./scripts/package --lock: {requirement} has no pin"
        assert all(requirement.specifier.contains(version, prereleases=True) for version in versions), requirement


def test_no_release_of_numba_is_excluded_as_each_private_name_is_guarded() -> None:
    (numba,) = [each for each in REQUIREMENTS if each.name == "numba"]
    assert [each.operator for each in numba.specifier] == [">="]


def test_nobody_is_told_to_let_all_write_the_cache_of_kernels() -> None:
    pages = [ROOT / "Dockerfile", ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    assert [page.name for page in pages if re.search(r"chmod .*(a\+|777|o\+)", page.read_text(errors="replace"))] == []


def test_the_table_of_the_environment_names_every_extra() -> None:
    table = (ROOT / "docs" / "environment.md").read_text()
    assert [extra for extra in EXTRAS if f"`[{extra}]`" not in table] == []


def test_the_dockerfile_takes_the_system_packages_that_the_tests_take() -> None:
    (install,) = [command for command in commands() if command[:2] == ["apt-get", "install"]]
    packages = [word for word in install[2:] if not word.startswith("-")]
    assert packages[-2:] == ["gcc", "libc6-dev"]  # for Triton, whose kernels no test launches without a GPU
    assert f'"{" ".join(packages[:-2])}"' in (ROOT / "scripts" / "test").read_text()


def test_the_dockerfile_runs_only_what_these_tests_know() -> None:
    assert {name for name, _ in dockerfile()} <= {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "ENTRYPOINT"}
    assert {command[0] for command in commands()} <= {"apt-get", "rm", "sed", "pip", "uv", "picstore"}
    for command in commands():
        assert command[0] != "picstore" or command[1] in program.list_commands(click.Context(program))
    (entry,) = [json.loads(rest) for name, rest in dockerfile() if name == "ENTRYPOINT"]
    assert entry == ["picstore"] and "picstore" in PROJECT["scripts"]
    (pinned,) = [command for command in commands() if command[:2] == ["pip", "install"]]
    assert "--require-hashes" in pinned  # uv itself


def test_the_dockerfile_installs_extras_that_exist() -> None:
    assert "--constraint" in install_command()
    target = install_command()[-1]
    assert re.fullmatch(r"\.\[[a-z,]+\]", target)
    assert set(target[2:-1].split(",")) <= set(EXTRAS)


@pytest.mark.slow
def test_what_the_dockerfile_copies_is_enough_to_install_picstore(tmp_path: Path) -> None:
    for name, rest in dockerfile():
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / source, tmp_path / target)
    install = [word for word in install_command() if word != "--system"]
    alone = ["--quiet", "--no-deps", "--no-build-isolation", "--python", sys.executable, "--target", "installed"]
    subprocess.run([*install, *alone], cwd=tmp_path, check=True, timeout=60)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    show = "import picstore; print(picstore.__file__, picstore.__version__)"
    shown = subprocess.run(
        [sys.executable, "-c", show],
        cwd=tmp_path / "installed",
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout.startswith(str(tmp_path / "installed"))
    policy = tmp_path / "installed/picstore/prepare/image/imagemagick_policy/policy.xml"
    assert policy.exists() and (tmp_path / "installed/picstore/py.typed").exists()


def test_the_scripts_install_at_the_pinned_versions() -> None:
    text = (ROOT / "scripts" / "venv.sh").read_text()
    (install,) = re.findall(r"pip install .*--editable.*", text.replace("\\\n", ""))
    assert "--constraint constraints.txt" in install
    lines = {
        (path.name, line)
        for path in (ROOT / "scripts").iterdir()
        if path.is_file()
        for line in path.read_text("latin-1").splitlines()
        if "pip install" in line
    }
    # Without an index pip takes the wheels of ./gpu, which scripts/wheelhouse fetches by the hashes of constraints.txt.
    assert {name for name, line in lines if "--no-index" not in line} <= {"venv.sh", "package", "numba"}
