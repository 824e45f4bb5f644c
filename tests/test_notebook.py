"""The notebook examples/tutorial.ipynb runs, shows pictures, and is kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from programs import run_program

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tutorial.ipynb"
# As a kernel does: cells share one namespace, and the value that a cell ends with is shown as HTML or as a picture.
KERNEL = """
import ast, json, sys
shared, shown = {"__name__": "__main__"}, []
for code in json.load(open(sys.argv[1])):
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not code.endswith(";") else None
    exec(compile(tree, "cell", "exec"), shared)
    value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), shared)
    for kind in ("_repr_html_", "_repr_png_"):
        if content := getattr(value, kind, lambda: None)():
            shown.append((type(value).__name__, kind, len(content)))
json.dump(shown, open("shown.json", "w"))
"""


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_outputs() -> None:
    assert code_cells()
    for cell in code_cells():
        assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    pytest.importorskip("matplotlib")
    (tmp_path / "cells.json").write_text(json.dumps(["".join(cell["source"]) for cell in code_cells()]))
    run_program("-c", KERNEL, "cells.json", cwd=tmp_path)
    shown = [(name, kind) for name, kind, size in json.loads((tmp_path / "shown.json").read_text()) if size > 300]
    drawn = ("PngFigure", "_repr_png_")
    assert [each for each in shown if each[0] in ("Dataset", "Loader", "Batch") or each == drawn] == [
        ("Dataset", "_repr_html_"),
        drawn,
        drawn,
        ("Loader", "_repr_html_"),
        drawn,
        drawn,
        ("Batch", "_repr_html_"),
    ]
