"""Public names: one table, from which loading, ``__all__``, the type checkers' view and the reference follow."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import picstore
import picstore.transforms as T  # noqa: N812  as the documentation writes it
from picstore import _public

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "picstore"


def test_the_type_checkers_view_is_written_from_the_table() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        stubs = importlib.import_module("stubs").stubs()
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    for name, text in stubs.items():
        assert (PACKAGE / name).read_text() == text, f"run python scripts/stubs.py: {name} is not of the table"


def test_transforms_reads_as_torchvisions_module() -> None:
    assert set(T.__all__) <= set(picstore.__all__)
    for name in T.__all__:
        assert getattr(T, name) is getattr(picstore, name)
        assert getattr(T, name).__module__.startswith("picstore.train.transforms.")
    assert isinstance(T.RandomResizedCrop(8), picstore.RandomResizedCrop)
    assert dir(T) == sorted(T.__all__)
    with pytest.raises(AttributeError, match=r"module 'picstore\.transforms' has no attribute 'RandomCorp'"):
        T.RandomCorp  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.slow
def test_a_star_imports_the_table_and_nothing_else() -> None:
    code = "from picstore import *; print(sorted(name for name in dir() if name[:2] != '__'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == sorted(set(picstore.__all__) - {"__version__"})


def test_each_package_says_that_it_is_internal() -> None:
    """In one way: the first word of its docstring. What is public is a name or a module of the table."""
    packages = [each.name for each in pkgutil.iter_modules([str(PACKAGE)]) if each.ispkg]
    assert len(packages) == 9 and not set(packages) & set(_public.MODULES + _public.EXTRA_MODULES)
    for name in packages:
        docstring = ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text()))
        assert (docstring or "").startswith("Internal: "), name
