"""Compilation ahead of use: announced once, shared by processes, and of what is needed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import slow_except
from pictures import require
from programs import Program

from picstore.kernels import ahead
from picstore.kernels.jit import address_of, caller, kernel

COMPILE = """
from numba.core import event
from picstore.kernels.ahead import compile_ahead
from picstore.train.cpu.canvas_positions import map_positions
from picstore.train.cpu.augmix_sum import add_weighted
from picstore.train.cpu.targets import clip_polygon
with event.install_recorder("numba:compile") as seen:
    done = compile_ahead([map_positions, clip_polygon, add_weighted, add_weighted], processes=2)
kernels = ("map_positions", "clip_polygon", "add_weighted")
here = {each.data["dispatcher"].py_func.__name__ for _, each in seen.buffer}
print(done.compiled, done.cached, len(here.intersection(kernels)))
"""
ANNOUNCEMENT = "picstore: compiling 3 kernels, once on this machine\npicstore: compiled 3 kernels in N s\n"

# The kernels that a process loads, besides those that it is said to need.
UNFORESEEN = """
import importlib, pathlib, sys, tempfile
import numpy as np
import torch
from PIL import Image
import picstore
from picstore import recipes
from picstore.train.cpu.needed_kernels import needed_kernels
from picstore.train.core import make_output
from picstore.train.transforms.transform_plan import plan_transforms

steps, dtype, memory_format = {steps}, {dtype}, {memory_format}
folder = pathlib.Path(tempfile.mkdtemp())
noise = np.random.default_rng(0)
with picstore.Writer(folder / "set") as writer:
    for number in range(24):
        writer.add(Image.fromarray(noise.integers(0, 256, (96, 120, 3), dtype=np.uint8)), label=0)
def loaded():
    modules = [module for name, module in sys.modules.items() if name.startswith("picstore.")]
    found = [each for module in modules for each in vars(module).values() if hasattr(each, "signature")]
    return {{each.py_func.__name__ for each in found if getattr(each, "overloads", None)}}
before = loaded()
options = dict(batch_size=8, transform=steps, dtype=dtype, memory_format=memory_format, isolate=False)
for _ in picstore.Loader(folder / "set", **options):
    pass
plan = plan_transforms(steps)[0]
needed = {{each.py_func.__name__ for each in needed_kernels([plan], make_output([plan], dtype, memory_format))}}
print(sorted(loaded() - before - needed))
"""


def untimed(text: str) -> str:
    return re.sub(r" in \d+ s", " in N s", text)


def run(code: str, cache: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, **options)


@pytest.fixture(scope="module")
def first_use(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A cache, and the process that filled it."""
    require(importlib.util.find_spec("torch"), "torch")
    cache = tmp_path_factory.mktemp("cache")
    return cache, run(COMPILE, cache)


@pytest.mark.slow
def test_kernels_compile_in_several_processes_and_a_line_on_stderr_says_so(
    first_use: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    done = first_use[1]
    compiled, cached, here = map(int, done.stdout.split())
    assert (compiled, cached, untimed(done.stderr)) == (3, 0, ANNOUNCEMENT)
    assert 1 <= here < 3  # the others came from the helper's cache, or were not loaded at all


def test_a_process_that_finds_all_kernels_compiled_says_nothing(
    first_use: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    done = run(COMPILE, first_use[0])
    assert (done.stdout, done.stderr) == ("0 3 0\n", "")


@pytest.mark.slow
def test_of_processes_that_start_at_the_same_time_one_compiles(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", COMPILE], stdout=-1, stderr=-1, text=True, env=environment)
        for _ in range(3)
    ]
    ended = [process.communicate() for process in started]
    assert sorted(out for out, _ in ended)[:2] == ["0 3 0\n"] * 2
    assert sorted(untimed(err) for _, err in ended) == ["", "", ANNOUNCEMENT]


@pytest.mark.slow
def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE], stdout=subprocess.DEVNULL, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # the other side is closed
        pass
    assert process.wait() == 0
    assert b"compiling 3 kernels, once on this machine" in shown
    assert b"3/3" in shown


@pytest.mark.slow
def test_without_a_folder_for_the_cache_each_process_compiles_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(COMPILE, tmp_path / "file")  # no folder can be made below it
    assert done.stdout == "3 0 3\n"
    assert untimed(done.stderr) == (
        "picstore: compiling 3 kernels, in each process, as no folder keeps them: "
        "set NUMBA_CACHE_DIR to a folder that can be written\npicstore: compiled 3 kernels in N s\n"
    )


def test_the_lock_of_the_cache_is_not_a_link(tmp_path: Path) -> None:
    """In a folder that others can write to, it could lead to any file of the user's."""
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "picstore.lock").symlink_to(tmp_path / "precious")
    with ahead._locked(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def lock_is_free(folder: Path) -> bool:
    with (folder / "picstore.lock").open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_process_that_keeps_the_lock_for_ever_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ahead._locked(tmp_path):
        assert not lock_is_free(tmp_path)
        monkeypatch.setattr(ahead, "_LOCK_SECONDS", 0.1)
        with ahead._locked(tmp_path):
            pass
        assert capsys.readouterr().err.startswith("picstore: another process has compiled kernels for")
        assert not lock_is_free(tmp_path)
    assert lock_is_free(tmp_path)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_fork_does_not_keep_the_lock(tmp_path: Path) -> None:
    with ahead._locked(tmp_path):
        child = os.fork()
        if child == 0:
            signal.pause()  # with the lock's file open
            os._exit(0)
    try:
        assert lock_is_free(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "dtype", "memory_format"),
    slow_except(
        [("recipes.timm_default(32)", "None", "torch.contiguous_format")],
        [
            ("recipes.timm_default(32)", "None", "torch.contiguous_format"),
            ("recipes.torchvision_resnet50_v2(32)", "torch.float16", "torch.channels_last"),
            ("recipes.simclr(32)", "torch.bfloat16", "torch.contiguous_format"),
            ("[picstore.RandomRotation(20), picstore.Resize((32, 32))]", "None", "torch.contiguous_format"),
            (
                "[picstore.RandomResizedCrop(32, interpolation='bicubic'), picstore.ElasticTransform(),"
                " picstore.GaussianNoise()]",
                "None",
                "torch.channels_last",
            ),
        ],
    ),
)
def test_training_loads_no_kernel_that_is_not_foreseen(steps: str, dtype: str, memory_format: str) -> None:
    code = UNFORESEEN.format(steps=steps, dtype=dtype, memory_format=memory_format)
    for _ in range(2):  # a process that compiles a kernel also loads those that it calls
        program = Program("-c", code)
        output, errors = program.communicate(timeout=120)
        assert program.returncode == 0, errors
        if output == "[]\n":
            break
    assert (output, errors) == ("[]\n", "")


@kernel("int64(int64[::1], int64)")
def _element(numbers: np.ndarray, k: int) -> int:
    if k >= numbers.size:
        raise ValueError("beyond the end")
    return numbers[k]


_call = caller(_element.signature)


@kernel("int64(int64, int64[::1], int64)")
def _twice(address: int, numbers: np.ndarray, k: int) -> int:
    return 2 * _call(address, (numbers, k))


def test_a_kernel_calls_another_by_its_address_and_passes_its_errors_on() -> None:
    numbers = np.array([3, 5])
    assert _twice(address_of(_element), numbers, 1) == 10
    with pytest.raises(ValueError, match="beyond the end"):
        _twice(address_of(_element), numbers, 2)
