"""Write what type checkers read of picstore's public names, from ``picstore/_public.py``.

python scripts/stubs.py            # after a change of that table
"""

from __future__ import annotations

from pathlib import Path

from picstore import _public

PACKAGE = Path(__file__).parents[1] / "picstore"
HEAD = "# Written by scripts/stubs.py from _public.py: type checkers take a name imported as itself for a public one.\n"
ALL = ("__all__: list[str]",)


def stubs() -> dict[str, str]:
    """Make the files, by name."""
    modules = [f"from picstore import {name} as {name}" for name in (*_public.EXTRA_MODULES, *_public.MODULES)]
    every = _imports(_public.modules_by_name(_public.NAMES, _public.TRANSFORMS))
    transforms = _imports(_public.modules_by_name(_public.TRANSFORMS))
    return {
        "__init__.pyi": HEAD + "\n".join([*sorted(modules), *every, "", *ALL]) + "\n",
        "transforms.pyi": HEAD + "\n".join([*transforms, "", *ALL]) + "\n",
    }


def _imports(modules: dict[str, str]) -> list[str]:
    ordered = sorted((module, name) for name, module in modules.items())
    return [f"from picstore.{module} import {name} as {name}" for module, name in ordered]


if __name__ == "__main__":
    for name, text in stubs().items():
        (PACKAGE / name).write_text(text)
