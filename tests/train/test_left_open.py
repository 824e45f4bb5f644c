"""Programs that end with a loader, a mux, a data set or a writer still open: nothing on stderr."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

START = """
import sys
import numpy as np
import picstore
data, crop = sys.argv[1], [picstore.RandomResizedCrop(16)]
"""
# What is bound at the end of a script is freed after the modules were emptied.
README = """
loader = picstore.Loader(data, batch_size=10, transform=crop)
for epoch in range(2):
    for images, labels in loader:
        pass
"""
ALONE = """
batches = iter(picstore.Loader(data, batch_size=10, transform=crop, isolate=False))
next(batches)
mixed = iter(picstore.DataMux([(picstore.Dataset(data), 0, 4)], transform=crop, epoch_batches=3, isolate=False))
next(mixed)
writer = picstore.Writer(data + "-writer", classes=["a"])
"""
OPEN = """
loader = picstore.Loader(data, batch_size=10, transform=crop, isolate=False)
first, second = iter(loader), iter(picstore.Loader(data, batch_size=4, transform=crop))
next(first), next(second)
dataset = picstore.Dataset(data)
mux = picstore.DataMux([(dataset, 0, 4)], transform=crop)
sample, batches, records = mux.read(), iter(mux), iter(dataset)
next(batches), next(records)
item = picstore.MapDataset(data, transform=crop)[0]
writer = picstore.Writer(data + "-writer", classes=["a"])
writer.add(np.zeros((8, 8, 3), np.uint8), label=0)
ring = [loader, first, second, mux, batches, writer]
ring.append(ring)
"""
# Another module, such as dill, which torch imports where it is installed, may keep the script until the very end.
KEPT = """
import builtins, sys, types
keeper = builtins.kept = sys.modules["keeper"] = types.ModuleType("keeper")
keeper.script = sys.modules["__main__"]
"""


@pytest.mark.parametrize(
    "script",
    [
        START + README,
        START + KEPT + ALONE,
        pytest.param(START + OPEN, marks=pytest.mark.slow),
        pytest.param(START + KEPT + OPEN, marks=pytest.mark.slow),
    ],
    ids=["readme", "kept alone", "open", "kept"],
)
def test_a_script_that_closes_nothing_ends_with_a_clean_stderr(
    make_dataset: Callable[..., Path], script: str, tmp_path: Path
) -> None:
    """Each in a new Python: in one with other modules imported first, modules are emptied in another order."""
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, tmp_path / "script.py", make_dataset(30)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_class_of_the_package_has_a_del_method() -> None:
    """The interpreter calls it when the modules are empty already; weakref.finalize ends with the interpreter."""
    package = Path(__file__).parents[2] / "picstore"
    assert [path for path in package.rglob("*.py") if "def __del__" in path.read_text()] == []
