"""The layers of docs/design.md: a module imports only what stands to its left; heavy libraries stay at their edge."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "picstore"
# part: the parts it may import from, besides itself
ALLOWED = {
    "errors": set(),
    "arrays": set(),
    "rng": {"errors", "arrays"},
    "kernels": {"errors", "arrays"},
    "jpeg": {"errors", "arrays", "rng", "kernels"},
    "storage": {"errors", "arrays", "rng"},
    "prepare": {"errors", "arrays", "rng", "kernels", "jpeg", "storage"},
    "train": {"errors", "arrays", "rng", "kernels", "jpeg", "storage"},
    "cli": {"errors", "arrays", "rng", "jpeg", "storage", "prepare", "train"},
}
HEAVY = {
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "torch": {"train"},
    "torchvision": {"train"},
    "simplejpeg": {"train"},
    "wand": {"prepare"},
    "pyvips": {"prepare"},
    "pyarrow": {"prepare"},
    "h5py": {"prepare"},
    "lmdb": {"prepare"},
    "ray": {"prepare"},
    "rich": {"cli"},
    "click": {"cli"},
}


def imports_of(path: Path) -> list[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.append(node.module or "")
            if node.module == "picstore":
                names += [f"picstore.{alias.name}" for alias in node.names]
    return names


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_to_its_left(path: Path) -> None:
    part = part_of(path)
    for name in imports_of(path):
        words = name.split(".")
        if words[0] == "picstore" and len(words) > 1 and words[1] != "_version":
            assert words[1] == part or words[1] in ALLOWED[part], f"{part} must not import {name}"
        elif words[0] in HEAVY:
            assert part in HEAVY[words[0]], f"{name} belongs to {HEAVY[words[0]]}"


@pytest.mark.parametrize(
    "statement", ["import picstore", "from picstore.cli import program; program(['--help'], standalone_mode=False)"]
)
def test_importing_picstore_and_asking_for_help_load_nothing_heavy(statement: str) -> None:
    heavy = ("torch", "numba", "wand", "numpy", "PIL")
    code = f"import sys\n{statement}\nprint('loaded', [m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("name", ["Loader", "DataMux", "RandomResizedCrop"])
def test_without_torch_the_loader_says_what_to_install_and_the_rest_works(name: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
import picstore
picstore.Writer, picstore.Dataset
try:
    picstore.{name}
except picstore.MissingDependency as error:
    print(error, error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the loader needs PyTorch and torchvision: pip install 'picstore[torch]' 4\n"


def test_public_names_are_those_of_the_contract() -> None:
    import picstore

    for name in picstore.__all__:
        assert getattr(picstore, name) is not None
    contract = {"Dataset", "Writer", "Loader", "DataMux", "RandomResizedCrop", "RandomHorizontalFlip"}
    assert contract <= set(picstore.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        picstore.no_such_name  # noqa: B018
