"""One release of numba does not stop picstore: without any private name it imports, compiles and trains."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from grids import slow_except
from programs import Program

from picstore.kernels import numba_names
from picstore.kernels.numba_names import NAMES, OPTIONS
from picstore.prepare.convert.row_division import DatasetShape

HIDE = """
import sys
sys.path.insert(0, {folder!r})
from hidden_names import hide
for name in {names!r}:
    hide(name)
from picstore.kernels.numba_names import CACHE, CALLS, LINKING, available
"""
ADD = """
import numpy as np
from picstore.train.cpu.augmix_sum import MIX_FIRST, add_weighted
total = np.zeros(4, np.float32)
add_weighted(np.full(4, 100, np.uint8), np.full(4, 100, np.uint8), total, 0.5, int(MIX_FIRST))
print([each for each in (CACHE, LINKING, CALLS) if not available(each)], total[0])
"""
TRAIN = """
import sys, picstore
steps = [picstore.RandomResizedCrop(32)]
loader = picstore.Loader(sys.argv[1], batch_size=8, transform=steps, isolate=False, threads=1)
total = sum(batch.images.sum().item() for batch in loader)
print([each for each in (CACHE, LINKING, CALLS) if not available(each)], total)
"""
SHAPE = DatasetShape(streams=2, container_size=16 << 10, file_size=64 << 10)
GROUPS = {**NAMES, "options": tuple(f"options.{name}" for name in OPTIONS)}
OTHERS = ["numba.core.codegen.get_host_cpu_features", "numba.core.compiler_lock.global_compiler_lock"]
OTHERS += ["numba.core.cpu.CPUTargetOptions"]
EACH = sorted({name for names in GROUPS.values() for name in names} | set(OTHERS))


def run_without(names: list[str], code: str, cache: Path | None, *arguments: object) -> tuple[list[str], float]:
    """Hide names, and run a program: the groups that it lacks, and a number.

    Args:
        cache: where its kernels are kept; None for those of this machine.
    """
    source = HIDE.format(folder=str(Path(__file__).parent), names=names) + code
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": str(cache)} if cache else {})}
    program = Program("-c", source, *arguments, environment=environment, modules=["numba"])
    printed, errors = program.communicate(600)  # compiling by itself takes numba a minute on a busy machine
    assert program.returncode == 0, errors
    groups, number = printed.rsplit(" ", 1)
    return re.findall(r"\w+", groups), float(number)


@pytest.mark.slow
@pytest.mark.parametrize("group", slow_except(["all"], [*GROUPS, "others", "all"], mark=pytest.mark.nightly))
def test_without_the_private_names_of_a_group_a_kernel_compiles_and_runs(group: str, tmp_path: Path) -> None:
    names = EACH if group == "all" else GROUPS.get(group, OTHERS)
    missing, total = run_without(list(names), ADD, tmp_path)
    assert total == 50
    assert missing == [each for each in NAMES if set(NAMES[each]) & set(names)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def pixels(make_dataset_once: Callable[..., Path]) -> float:
    """The sum of an epoch's pixels with all names, by kernels that are compiled: 12 s of a core less."""
    return run_without([], TRAIN, None, make_dataset_once(30, 5, SHAPE, 60, 40))[1]


@pytest.mark.parametrize("name", EACH)
def test_without_one_name_its_groups_are_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = numba_names.find
    monkeypatch.setattr(
        numba_names, "find", lambda each, *rest: rest[0] if each == name and rest else find(each, *rest)
    )
    assert all(numba_names.available.__wrapped__(group) == (name not in NAMES[group]) for group in NAMES)


# 30 s of CPU without all of them. One name or group at a time takes ten minutes: for a new release of numba.
@pytest.mark.nightly
@pytest.mark.parametrize("lacking", ["all", *(EACH + list(NAMES) if os.environ.get("PICSTORE_EACH_NAME") else [])])
def test_without_any_private_name_a_loader_trains_on_the_same_pixels(
    lacking: str, cache: Path, pixels: float, make_dataset_once: Callable[..., Path]
) -> None:
    names = EACH if lacking == "all" else GROUPS.get(lacking, (lacking,))
    missing, found = run_without(list(names), TRAIN, cache, make_dataset_once(30, 5, SHAPE, 60, 40))
    assert found == pixels
    assert set(missing) >= {group for group in NAMES if set(NAMES[group]) & set(names)}


def test_no_other_module_names_what_is_private_to_numba() -> None:
    package = Path(numba_names.__file__).parents[1]
    private = re.compile(r"^\s*(from numba\.(?!extending)\S+ import|import numba\.)", re.MULTILINE)
    assert [path.name for path in package.rglob("*.py") if private.search(path.read_text())] == []
