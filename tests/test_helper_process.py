"""Helper processes: nothing in the working directory runs in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from grids import slow_except
from samples import jpeg

from picstore import helper_process
from picstore.helper_process import module_folders

# Of picstore, of an extension, of what Python imports by itself at its start and end, and of what picstore looks for.
STRANGE = (
    "picstore",
    "numpy",
    "numba",
    "threading",
    "signal",
    "socket",
    "linecache",
    "random",
    "scipy",
    "sitecustomize",
)
LOADER = """
import sys, picstore
print(len(list(picstore.Loader(sys.argv[1], batch_size=8, transform=[picstore.Resize(9)]))))
"""
COMPILE = """
from picstore.kernels.ahead import compile_ahead
from picstore.train.cpu.canvas_positions import map_positions
from picstore.train.cpu.augmix_sum import add_weighted
print(compile_ahead([map_positions, add_weighted], processes=2).compiled)
"""
# As a notebook: the working directory is on the path, but all that this process imports is there already.
NOTEBOOK = "import os, sys, picstore.train.loader\nsys.path.insert(0, '')\nos.chdir(sys.argv[2])\n" + LOADER


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder of photographs from a stranger, with modules; each notes that it ran."""
    folder = tmp_path / "strange"
    (folder / "cat").mkdir(parents=True)
    for number in range(3):
        (folder / "cat" / f"{number}.jpg").write_bytes(jpeg(number))
    for name in STRANGE:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise ImportError\n")
    return folder


def run_there(strange: Path, *arguments: object, **environment: str) -> str:
    """What a command writes to stdout in the stranger's folder; nothing of that folder may have run."""
    done = subprocess.run(
        [*map(str, arguments)], cwd=strange, env={**os.environ, **environment}, capture_output=True, text=True
    )
    ran = strange.parent / "ran"
    assert not ran.exists(), f"{ran.read_text()} of the working directory ran"
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(folder: Path, code: str) -> Path:
    (folder / "script.py").write_text(code)
    return folder / "script.py"


@pytest.mark.slow
def test_convert_and_verify_run_nothing_that_lies_in_the_working_directory(strange: Path) -> None:
    command = script(strange.parent, "from picstore.cli import main\nmain()\n")
    assert "3 images" in run_there(strange, sys.executable, command, "convert", ".", "../out", "--workers", 1)
    run_there(strange, sys.executable, command, "verify", "--decode", "../out")


@pytest.mark.slow
def test_kernels_compile_without_what_lies_in_the_working_directory(strange: Path, tmp_path: Path) -> None:
    compiling = script(strange.parent, COMPILE)
    assert run_there(strange, sys.executable, compiling, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "2\n"


@pytest.mark.parametrize("code", slow_except([], [LOADER, NOTEBOOK]), ids=["a script", "a notebook"])
def test_a_loader_runs_nothing_that_lies_in_the_working_directory(
    strange: Path, make_dataset: Callable[..., Path], code: str
) -> None:
    path = make_dataset(50)
    assert run_there(strange, sys.executable, script(path.parent, code), path, strange) == "6\n"


def test_the_working_directory_comes_last_and_only_where_it_does_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/a", "b"])
    assert module_folders() == ["/a", str(tmp_path / "b")]
    monkeypatch.setattr(sys, "path", ["", "/a", "."])
    assert module_folders() == ["/a", str(tmp_path)]


def test_the_package_starts_python_in_one_place() -> None:
    package = Path(__file__).parents[1] / "picstore"
    starts = re.compile(r"sys\.executable,|get_context\(|multiprocessing import forkserver|ProcessPool")
    assert [path.name for path in package.rglob("*.py") if starts.search(path.read_text())] == ["helper_process.py"]


@pytest.mark.parametrize("version", [None, "3.10", "3.13"])
def test_a_helper_of_any_python_imports_nothing_from_the_working_directory(strange: Path, version: str | None) -> None:
    """By the program alone, which needs no package. Python 3.10 has no option for it, 3.13 imports at its start."""
    python = sys.executable if version is None else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-V"], cwd=strange.parent, capture_output=True).returncode:
        pytest.skip(f"there is no Python {version}")
    (strange.parent / "probe.py").write_text("def main():\n    import random, threading, sys\n    print(sys.argv)\n")
    show = "import sys; print(*filter(None, sys.path), sep='\\n', end='')"
    folders = subprocess.run(
        [python, "-c", show], cwd=strange.parent, capture_output=True, text=True, check=True
    ).stdout
    given = [f"{folders}\n{strange.parent}", "probe:main", "scipy", "", "one", "two"]
    main = Path(helper_process.__file__).with_name("helper_main.py")
    assert run_there(strange, python, main, *given) == f"{[str(main), 'one', 'two']}\n"
