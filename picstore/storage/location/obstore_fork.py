"""Import of obstore: on first use, and again in each forked process.

obstore creates one runtime, whose threads run all requests. A forked process has the runtime without the threads, so
requests would wait forever. obstore cannot create a second runtime, so a forked process loads the compiled module
again, from a copy that has no runtime yet. Loading takes 40 ms and 15 MB.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from picstore.errors import missing_extra

_PACKAGE, _COMPILED = "obstore", "obstore._obstore"
# Package ``obstore`` by the id of the process that imported it: a forked process cannot use its parent's package.
_loaded: dict[int, ModuleType] = {}
# Locks by process id. A forked process needs a lock of its own, because a thread of its parent may have held the
# parent's lock during the fork, and such a lock is never released in the forked process.
_locks: dict[int, threading.Lock] = {}
# Path of the file from which obstore's compiled module was first loaded, as the only item; empty before.
_files: list[Path] = []


def library() -> ModuleType:
    """Return ``obstore``, imported anew in a forked process; raise MissingDependency if it is not installed."""
    process = os.getpid()
    if process not in _loaded:
        with _locks.setdefault(process, threading.Lock()):
            if process not in _loaded:
                _loaded[process] = _load()
    return _loaded[process]


def _load() -> ModuleType:
    try:
        if _files:
            _replace_compiled(_files[0])
        module = importlib.import_module(_PACKAGE)
        importlib.import_module(f"{_PACKAGE}.exceptions")
    except ImportError as error:
        raise missing_extra("object stores need obstore, which cannot be imported", "objects") from error
    if not _files:
        _files.append(Path(str(sys.modules[_COMPILED].__file__)))
    return module


def _replace_compiled(file: Path) -> None:
    """Load a second instance of obstore's compiled module from a copy of ``file``, for the package's next import."""
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]
    with _copied(file) as path:
        loader = ExtensionFileLoader(_COMPILED, path)
        spec = importlib.util.spec_from_loader(_COMPILED, loader)
        if spec is None:
            raise ImportError(f"{file} cannot be loaded")
        spec.origin = path
        sys.modules[_COMPILED] = importlib.util.module_from_spec(spec)
        loader.exec_module(sys.modules[_COMPILED])


@contextlib.contextmanager
def _copied(file: Path) -> Iterator[str]:
    """Yield the path of a copy of a file; in memory if possible, because a temporary folder may be mounted noexec."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(suffix=file.suffix) as copy:
            copy.write(file.read_bytes())
            copy.flush()
            yield copy.name
        return
    with os.fdopen(os.memfd_create(file.name), "wb") as memory:
        memory.write(file.read_bytes())
        memory.flush()
        yield f"/proc/{os.getpid()}/fd/{memory.fileno()}"
