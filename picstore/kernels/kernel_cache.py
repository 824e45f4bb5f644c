r"""Cache of compiled kernels on disk: one file per kernel, named after everything that the machine code depends on.

    b"picstore kernel 1\n"  SHA-256 (32 bytes) of key and payload  payload: numba's result of compiling, pickled

A file is never changed, so no file is stale, and no index can name missing data. The digest shows whether a file was
cut or a bit has flipped. Whoever can write such a file can run code here, so a file is read only if this user, root or
the owner of picstore's own files owns it and nobody else may write it. Any other file is set aside, and its kernel is
compiled anew. If no folder can be written, each process compiles its kernels.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import stat
import sys
import time
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import llvmlite
import numba

from picstore.kernels.numba_names import CALLS, LINKING, available, find

SUFFIX = ".kernel"
_HEADER = b"picstore kernel 1\n"
# Maximum size in bytes of a kernel's file; the largest kernel takes 200 KB.
_MAX_BYTES = 1 << 26
# Number of older files of each kernel to keep, because machines, or versions of picstore, may share a folder.
_KEPT = 8
# Files that are not completely written count as left behind by a killed process once they are this old, in seconds.
_PARTIAL_SECONDS = 3600
_ROOT = Path(__file__).parents[2]
# numba's options that change the machine code; the environment names them NUMBA_OPT and so on.
_OPTIONS = "OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE"
# Imports of picstore's modules in a source. A pattern tied to the beginning of a line would be five times as slow.
_IMPORT = re.compile(rb"from (picstore[.\w]*) import (\([^)]*\)|.*)")
_NAME = re.compile(r"\w+")


class Unusable(Exception):
    """Error that says why a file of the cache is not used."""


class KernelCache:
    """Cache of one kernel, with the methods that numba's dispatcher expects of its own cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @property
    def cache_path(self) -> str | None:
        """Folder to which new machine code is written; None if no folder of the user can be written."""
        folder = cache_folders()[0]
        return None if folder is None else str(folder)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the cached result of compiling the kernel for a signature; None if the cache does not have it."""
        name, key = self.name_and_key(signature, context)
        if (found := _find(name, key)) is None:
            return None
        path, payload = found
        try:
            # Machine code may refer to numba's runtime. numba's own cache would also set up numba's compiler, which
            # would take 70 of the 135 ms before a process's first kernel runs.
            find("numba.core.runtime.rtsys").initialize(context)
            content = pickle.loads(payload)  # noqa: S301 - of a trusted owner, see ``read_trusted``
            return find("numba.core.compiler.CompileResult")._rebuild(context, *content)
        except Exception as error:
            # numba's private functions above may raise any error if another version of numba has changed them.
            _set_aside(path, f"numba cannot load it: {type(error).__name__}: {error}")
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write ``compiled``, numba's result for a signature, to the cache, if there is a folder for new kernels."""
        folder = cache_folders()[0]
        # Machine code with dynamic globals is not cached, because such globals may be addresses in this process.
        if folder is None or getattr(compiled.library, "has_dynamic_globals", False):
            return
        payload = find("numba.core.serialize.dumps")(_reduce(compiled))
        name, key = self.name_and_key(signature, compiled.target_context)
        try:
            _write(folder / name, _HEADER + _digest(key, payload) + payload)
        except OSError as error:
            _warn_once(f"{folder} takes no compiled kernels ({error.strerror}): each process compiles them anew")

    def holds(self, signature: Any, context: Any) -> bool:
        """Return whether the cache has machine code for a signature; set aside files that cannot be used."""
        return _find(*self.name_and_key(signature, context)) is not None

    def name_and_key(self, signature: Any, context: Any) -> tuple[str, bytes]:
        """Return the name of a kernel's file, and a digest of everything on which the machine code depends."""
        function = self._function
        depends = (
            *(function.__module__, function.__qualname__, str(signature), _code_digest(function)),
            *(context.codegen().magic_tuple(), available(LINKING), available(CALLS)),
            *[getattr(numba.config, each, None) for each in _OPTIONS],
            *(numba.__version__, llvmlite.__version__, sys.version, sys.platform),
        )
        key = hashlib.sha256(repr(depends).encode()).digest()
        kernel = re.sub(r"\W", "", function.__qualname__)
        return f"{kernel}-{key.hex()[:32]}{SUFFIX}", key

    def flush(self) -> None:
        """Do nothing. numba calls this to discard old machine code, but each file is for one state of the sources."""

    enable = disable = flush


def _reduce(compiled: Any) -> tuple[Any, ...]:
    """Return what to store of a compiled kernel: all but the ``Environment`` objects of numba's own functions.

    Loading these objects would import numba's modules for arrays, which takes 15 ms.
    """
    *kept, environments = compiled._reduce()
    return *kept, tuple(each for each in environments if each.globals["__name__"].startswith("picstore"))


@cache
def cache_folders() -> tuple[Path | None, tuple[Path, ...]]:
    """Return the folder for new kernels, if any, and the folders in which to look for kernels, in this order.

    Only the current user writes to the folder for new kernels. Users who share ``NUMBA_CACHE_DIR`` have a folder each;
    all also read from the first user's, ``picstore``.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        candidates = [Path(given, "picstore"), Path(given, f"picstore-{os.geteuid()}")]
    else:
        candidates = [Path(__file__).with_name("__pycache__")]
        # Path.home raises RuntimeError if the user has no home folder.
        with contextlib.suppress(RuntimeError):
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            candidates.append(Path(home, "picstore", "kernels"))
    for folder in candidates:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            if folder.stat().st_uid in (os.geteuid(), *[_package_owner()] * (os.geteuid() == 0)) and os.access(
                folder, os.W_OK | os.X_OK
            ):
                return folder, (folder, *(each for each in candidates if each != folder))
    return None, tuple(candidates)


@cache
def _package_owner() -> int:
    return os.stat(__file__).st_uid  # noqa: PTH116


def _find(name: str, key: bytes) -> tuple[Path, bytes] | None:
    """Return path and payload of a kernel's file in the first folder that has it, or None; set aside unusable files."""
    for folder in cache_folders()[1]:
        path = folder / name
        try:
            return path, check_payload(read_trusted(path), key)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (Unusable, OSError) as error:
            _set_aside(path, error.strerror or "" if isinstance(error, OSError) else str(error))
    return None


def check_payload(data: bytes, key: bytes) -> bytes:
    """Return the pickled kernel in a file's bytes; raise Unusable if its digest with ``key`` is not the file's."""
    start = len(_HEADER) + hashlib.sha256().digest_size
    if data[:start] != _HEADER + _digest(key, data[start:]):
        raise Unusable("it was cut or changed, its digest differs")
    return data[start:]


def _digest(key: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(key + payload).digest()


def read_trusted(path: Path) -> bytes:
    """Read a file that only this user, root or the owner of picstore's files can have written.

    Raises:
        Unusable: another user owns the file or may write it, the path is not a regular file, or the file is too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable("it is not a regular file")
        if status.st_uid not in (os.geteuid(), 0, _package_owner()):
            raise Unusable(f"it belongs to another user, {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable("others may write it")
        if status.st_size > _MAX_BYTES:
            raise Unusable(f"it has {status.st_size:,} bytes")
        return file.read(_MAX_BYTES)


def _set_aside(path: Path, reason: str) -> None:
    _warn_once(f"{path} is set aside and compiled anew: {reason}")
    # The rename fails if this process may not write to the folder; then the file stays.
    with contextlib.suppress(OSError):
        path.replace(f"{path}.unusable")


@cache
def _warn_once(text: str) -> None:
    if sys.stderr is not None:
        print(f"picstore: {text}", file=sys.stderr, flush=True)


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.urandom(6).hex()}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(data)
        # Let other users read the file even if this process's umask has removed the permission.
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _remove_old(path)


def _remove_old(path: Path) -> None:
    """Remove a kernel's cache files except its new file ``path`` and the _KEPT newest of its old files.

    Also remove partial files that killed processes left behind.
    """
    with contextlib.suppress(OSError):
        kernel = path.name.rpartition("-")[0]
        times = {each: each.stat().st_mtime for each in path.parent.glob(f"{kernel}-*") if each != path}
        partial = [each for each in times if each.suffix == ".partial" and time.time() - times[each] > _PARTIAL_SECONDS]
        whole = sorted((each for each in times if each.suffix != ".partial"), key=times.__getitem__, reverse=True)
        for old in (*partial, *whole[_KEPT:]):
            old.unlink(missing_ok=True)


@cache
def _file_digest(path: str) -> str:
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return ""


def _code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a kernel's module and of all picstore modules that it imports, directly or indirectly."""
    if function.__module__.startswith("picstore."):
        return _source_digest(function.__module__)
    return _file_digest(function.__code__.co_filename) + hashlib.sha256(function.__code__.co_code).hexdigest()


@cache
def _source_digest(module: str) -> str:
    digests = {module: _read_source(module)[0]}
    waiting = [module]
    while waiting:
        for name in _read_source(waiting.pop())[1]:
            if name not in digests:
                digests[name] = _read_source(name)[0]
                waiting.append(name)
    return hashlib.sha256(b"".join(digests[name] for name in sorted(digests))).hexdigest()


@cache
def _read_source(module: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a digest of a module's source, and the picstore names it imports; both empty if the module is missing."""
    path = f"{_ROOT}/{module.replace('.', '/')}.py"
    # ``os.path`` is faster than pathlib, and a training process tests 500 names here, of which 100 are modules.
    if not os.path.isfile(path):  # noqa: PTH113
        return b"", ()
    with open(path, "rb") as file:  # noqa: PTH123
        source = file.read()
    found = ((package.decode(), names.decode()) for package, names in _IMPORT.findall(source))
    imported = [[package, *(f"{package}.{name}" for name in _NAME.findall(names))] for package, names in found]
    return hashlib.sha256(source).digest(), tuple(chain.from_iterable(imported))
