"""picstore: image datasets for training: convert, shuffle, verify, and stream augmented batches.

``_public.py`` lists the public names and modules, which are loaded on first use, so that ``import picstore`` is fast
and does not need torch. All other modules are internal.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from picstore import _public

if sys.platform == "win32":
    raise ImportError("picstore runs on Linux and macOS; on Windows, install it in WSL 2 (wsl --install), a Linux")

_MODULES_OF = _public.modules_by_name(_public.NAMES, _public.TRANSFORMS)
_load = _public.load_lazily(__name__, globals(), _MODULES_OF)
# The name ``map`` is left out, so that ``from picstore import *`` does not replace Python's own ``map``.
__all__ = sorted({*_MODULES_OF, *_public.MODULES} - {"map"})  # noqa: PLE0605  a list, because the docs site warns of a tuple


def __getattr__(name: str) -> Any:
    if name in _public.MODULES + _public.EXTRA_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return _load(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "map"])
