"""The cache of kernels: nothing runs from it that is cut, changed, or that others may have written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from grids import slow_except

from picstore.kernels import kernel_cache as cache
from picstore.kernels.kernel_cache import Unusable, read_trusted
from picstore.train.cpu.augmix_sum import add_weighted

# Adds by the smallest kernel, in a second or less; the last word is whether it was compiled.
ADD = """
import resource, sys
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from numba.core import event
import numpy as np
with event.install_recorder("numba:compile") as compiled:
    from picstore.train.cpu.augmix_sum import MIX_FIRST, add_weighted
    total = np.zeros(4, np.float32)
    add_weighted(np.full(4, 100, np.uint8), np.full(4, 100, np.uint8), total, 0.5, int(MIX_FIRST))
print(total[0], len(compiled.buffer) > 0)
"""
KEY = b"what the code depends on"
COMPILED, LOADED = "50.0 True\n", "50.0 False\n"


def add(folder: Path, *arguments: object, **environment: str) -> tuple[str, list[str]]:
    """What a process that adds prints, and its lines on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", ADD, *map(str, arguments)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one kernel."""
    folder = tmp_path_factory.mktemp("compiled")
    assert add(folder) == (COMPILED, [])
    return folder


@pytest.fixture
def kernels(compiled: Path, tmp_path: Path) -> Path:
    """A copy of that cache."""
    shutil.copytree(compiled, tmp_path / "kernels")
    return tmp_path / "kernels"


def kernel_in(folder: Path) -> Path:
    (path,) = folder.rglob("*.kernel")
    return path


def test_a_later_process_loads_the_kernel(kernels: Path) -> None:
    assert add(kernels) == (LOADED, [])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "it was cut or changed, its digest differs"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "it was cut or changed, its digest differs"),
    "flipped": (flip, "it was cut or changed, its digest differs"),
    "for all": (lambda path: path.chmod(0o666), "others may write it"),
    "a pipe": (replace_by_a_pipe, "it is not a regular file"),
    "strange": (lambda path: os.chown(path, 12345, 12345), "it belongs to another user, 12345"),
}


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the cache of this process, of the key ``KEY``."""
    path = tmp_path / f"add-1{cache.SUFFIX}"
    monkeypatch.setattr(cache, "cache_folders", lambda: (tmp_path, (tmp_path,)))
    cache._write(path, cache._HEADER + cache._digest(KEY, b"machine code") + b"machine code")
    assert cache._find(path.name, KEY) == (path, b"machine code")
    return path


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_cannot_be_trusted_is_set_aside_and_one_line_says_so(
    entry: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if damage == "strange" and os.geteuid():
        pytest.skip("only root gives files away")
    change, reason = DAMAGE[damage]
    change(entry)
    assert cache._find(entry.name, KEY) is None
    assert capsys.readouterr().err == f"picstore: {entry} is set aside and compiled anew: {reason}\n"
    assert [path.name for path in entry.parent.iterdir()] == [f"{entry.name}.unusable"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", slow_except(["flipped"], ["empty", "flipped", "for all"], mark=pytest.mark.nightly))
def test_a_process_compiles_what_was_set_aside_and_keeps_it(kernels: Path, damage: str) -> None:
    path = kernel_in(kernels)
    DAMAGE[damage][0](path)
    printed, lines = add(kernels)
    assert printed == COMPILED and len(lines) == 1 and str(path) in lines[0]
    assert add(kernels) == (LOADED, [])


def test_the_file_of_one_kernel_does_not_pass_for_another(entry: Path) -> None:
    """Who may only link and rename files there cannot have a kernel called with another's arguments."""
    assert cache._find(entry.name, b"another") is None


def test_what_numba_cannot_load_is_set_aside(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload is no pickle."""
    unit = cache.KernelCache(kernel_in)
    monkeypatch.setattr(unit, "name_and_key", lambda *_: (entry.name, KEY))
    assert unit.load_overload((), add_weighted.targetctx) is None
    assert not entry.exists()


@pytest.mark.slow
@pytest.mark.parametrize("limit", slow_except([1000], [1000, 20_000], mark=pytest.mark.nightly))
def test_a_full_cache_costs_compiling_and_one_line(tmp_path: Path, limit: int) -> None:
    printed, lines = add(tmp_path, limit)  # a limit of file sizes, at which writing fails like on a full disk
    assert printed == COMPILED
    assert len(lines) == 1 and "takes no compiled kernels" in lines[0]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []
    assert add(tmp_path) == (COMPILED, [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_cache_that_only_another_user_may_write_is_used_and_added_to(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a function, since another user may not read the folders of tests."""
    of_root = kernel_in(kernels).parent
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kernels))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    cache.cache_folders.cache_clear()
    try:
        assert cache.cache_folders() == (None, (kernels / "picstore", kernels / "picstore-12345"))
        assert read_trusted(kernel_in(kernels))
        (kernels / "picstore-12345").mkdir(exist_ok=True)
        os.chown(kernels / "picstore-12345", 12345, 12345)
        monkeypatch.setattr(os, "access", lambda path, mode: True)
        cache.cache_folders.cache_clear()
        own = kernels / "picstore-12345"
        assert cache.cache_folders() == (own, (own, of_root))
    finally:
        cache.cache_folders.cache_clear()


def test_a_kernel_keeps_no_more_files_than_processors_and_versions_need(tmp_path: Path) -> None:
    for k in range(20):
        cache._write(tmp_path / f"add-{k:032}.kernel", b"1")
        os.utime(tmp_path / f"add-{k:032}.kernel", (k, k))
    old = tmp_path / "add-0.kernel.1.partial"
    old.write_bytes(b"")
    os.utime(old, (0, 0))
    cache._write(tmp_path / f"add-{99:032}.kernel", b"1")
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"add-{k:032}.kernel" for k in [*range(12, 20), 99]]


def test_a_file_of_more_bytes_than_a_kernel_has_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Unusable, match="1,099,511,627,776 bytes"):
        read_trusted(tmp_path / "large")
