"""Compiled kernels on disk: kept between processes, and not used after a change of source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from grids import slow_except

PACKAGE = Path(__file__).parents[2] / "picstore"
USE = """
from numba.core import event
with event.install_recorder("numba:compile") as compiled:
    import numpy as np
    from picstore.train.cpu.normalize import bit_patterns
    from picstore.train.transforms.opcodes import OutputDtype
    bit_patterns(np.zeros(3, np.float32), OutputDtype.FLOAT16)  # by the smallest kernel
print(len(compiled.buffer) > 0)
"""

THEN_COMPILE = """
import sys
import numba
assert "numba.cpython.listobj" not in sys.modules, "loading filled the registries"
assert "numba.np.arrayobj" not in sys.modules, "loading imported what only compiling needs"
assert numba.njit(lambda numbers: np.sort(numbers)[-1])(np.arange(3.0)) == 2
"""


def copy_package(folder: Path) -> Path:
    shutil.copytree(PACKAGE, folder / "picstore", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


THEN_LINK = """
import numba
from picstore.train.cpu.normalize import round_floats

@numba.njit
def first_pattern(values, dtype):
    patterns = np.empty(3, np.uint32)
    round_floats(values, dtype, patterns)
    return patterns[0]

assert first_pattern(np.array([1, 2, 3], np.float32), int(OutputDtype.FLOAT16)) == 0x3c00
"""


def compiles(folder: Path, then: str = "") -> bool:
    """Whether a new process that uses a kernel of the package in a folder compiles it; it runs ``then`` after that."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", USE + then], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, of which a process has compiled a kernel; tests leave it compiled."""
    folder = copy_package(tmp_path_factory.mktemp("compiled"))
    assert compiles(folder)
    return folder


@pytest.mark.slow
def test_a_later_process_loads_what_an_earlier_one_compiled(compiled: Path) -> None:
    assert not compiles(compiled)


@pytest.mark.slow
def test_loading_kernels_imports_no_compiler_and_compiling_works_after_it(compiled: Path) -> None:
    assert not compiles(compiled, THEN_COMPILE)


@pytest.mark.slow
def test_a_kernel_that_was_loaded_is_linked_into_functions_that_call_it(compiled: Path) -> None:
    assert not compiles(compiled, THEN_LINK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    slow_except(["train/cpu/normalize.py"], ["train/cpu/normalize.py", "kernels/jit.py"], mark=pytest.mark.nightly),
)
def test_a_change_in_any_file_of_kernels_makes_compiled_code_stale(compiled: Path, changed: str) -> None:
    path = compiled / "picstore" / changed
    status = path.stat()
    path.write_text(path.read_text() + "\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # an archive may have restored it
    assert [compiles(compiled), compiles(compiled)] == [True, False]


@pytest.mark.slow  # tests/kernels/test_kernel_cache.py has what it rests on
def test_after_an_upgrade_on_a_full_disk_no_earlier_code_runs(tmp_path: Path) -> None:
    path = copy_package(tmp_path) / "picstore" / "train" / "cpu" / "augmix_sum.py"
    assert mix(tmp_path) == "50.0"
    before = path.read_text()
    path.write_text(before.replace("factor = _f32(weight)", "factor = _f32(weight) * _f32(10)"))
    assert path.read_text() != before
    assert [mix(tmp_path, limit) for limit in (0, 20_000, 1 << 30, 1 << 30)] == ["500.0"] * 4


def mix(folder: Path, limit: int = 1 << 30) -> str:
    """What a process computes whose files may have so many bytes."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
        "import numpy as np\n"
        "from picstore.train.cpu.augmix_sum import MIX_FIRST, add_weighted\n"
        "total = np.zeros(4, np.float32)\n"
        "add_weighted(np.full(4, 100, np.uint8), np.full(4, 100, np.uint8), total, 0.5, int(MIX_FIRST))\n"
        "print(total[0])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-c", code, str(limit)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_change_in_what_kernels_do_not_import_leaves_compiled_code_valid(compiled: Path) -> None:
    path = compiled / "picstore" / "train" / "loader.py"
    path.write_text(path.read_text() + "\n")
    assert not compiles(compiled)


@pytest.mark.slow
def test_kernels_run_where_neither_package_nor_home_folder_is_writable(tmp_path: Path) -> None:
    copy = copy_package(tmp_path)
    # Root may write to any folder, but none can be made beneath a file.
    (copy / "picstore" / "kernels" / "__pycache__").write_text("")
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    (copy / "home").write_text("")
    environment |= {"PYTHONPATH": str(copy), "HOME": str(copy / "home"), "XDG_CACHE_HOME": str(copy / "home" / "cache")}
    done = subprocess.run([sys.executable, "-c", USE], cwd=copy, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
