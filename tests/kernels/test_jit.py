"""Compiled kernels on disk: kept from process to process, never used once any kernel's source has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "picstore"
USE = """
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    import numpy as np
    from picstore.train.cpu.noise import add_noise
    add_noise(np.zeros((1, 1, 8)), np.zeros((1, 1), np.uint64), 0, 0, np.zeros((3, 2, 2), np.uint8))
print(len(compiled.buffer) > 0)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package."""
    shutil.copytree(PACKAGE, tmp_path / "picstore", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def compiles(folder: Path) -> bool:
    """Whether a new process that uses a kernel of the package in a folder compiles it."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-c", USE], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


def test_a_later_process_loads_what_an_earlier_one_compiled(copy: Path) -> None:
    assert [compiles(copy), compiles(copy)] == [True, False]


@pytest.mark.parametrize("changed", ["train/cpu/noise.py", "kernels/jit.py"])
def test_a_change_in_any_file_of_kernels_makes_compiled_code_stale(copy: Path, changed: str) -> None:
    compiles(copy)
    path = copy / "picstore" / changed
    status = path.stat()
    path.write_text(path.read_text() + "\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # an archive may have restored it
    assert [compiles(copy), compiles(copy)] == [True, False]


def test_a_change_in_what_kernels_do_not_import_leaves_compiled_code_valid(copy: Path) -> None:
    compiles(copy)
    path = copy / "picstore" / "train" / "loader.py"
    path.write_text(path.read_text() + "\n")
    assert not compiles(copy)


def test_kernels_run_where_neither_the_package_nor_the_home_folder_can_be_written(copy: Path) -> None:
    # Root may write to any folder, but none can be made beneath a file.
    for folder in (copy / "picstore", copy / "picstore" / "train" / "cpu"):
        (folder / "__pycache__").write_text("")
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    (copy / "home").write_text("")
    environment |= {"PYTHONPATH": str(copy), "HOME": str(copy / "home"), "XDG_CACHE_HOME": str(copy / "home" / "cache")}
    done = subprocess.run([sys.executable, "-c", USE], cwd=copy, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
