"""Nothing that waits or retries uses the clock on the wall, which may be set at any time."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import picstore
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.storage.location.local import Folder

PACKAGE = Path(picstore.__file__).parent
WALL = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "datetime.datetime.now"}


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock on the wall a year on and back again, at every look at it."""
    real, jumps = time.time, itertools.cycle((3.2e7, -3.2e7))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))


def test_only_caches_look_at_the_clock_on_the_wall() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL:
                found.add(path.relative_to(PACKAGE).as_posix())
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                found |= {path.name for alias in node.names if alias.name.startswith("time")}
    assert found == {"kernels/kernel_cache.py", "storage/cache.py"}  # which compare it with the times of their files


def test_a_lock_is_waited_for_as_long_as_it_says(jumping: None, tmp_path: Path) -> None:
    file = Folder(tmp_path / "lock")
    with file.lock("busy", create=True):
        began = time.monotonic()
        with pytest.raises(UsageError, match="busy"), file.lock("busy", wait=0.2):
            pass
        assert 0.2 <= time.monotonic() - began < 60


def test_a_loader_and_a_cache_go_on_while_the_clock_jumps(
    jumping: None, make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_dataset(60)
    dataset = Dataset(path, cache=tmp_path / "cache", cache_limit="64KiB")
    loader = picstore.Loader(dataset, batch_size=10, transform=[picstore.Resize((8, 8))], isolate=False)
    for _ in range(2):
        assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == list(range(60))
    loader.close()
    assert sum(file.stat().st_size for file in (tmp_path / "cache").glob("*/*")) <= 64 << 10
