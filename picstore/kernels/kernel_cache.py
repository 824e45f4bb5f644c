"""The cache of compiled kernels on disk: one file a kernel, named after all that its machine code depends on.

    b"picstore kernel 1\\n"  SHA-256 (32 bytes) of key and payload  payload: what numba makes of a kernel, pickled

A file under its name is never changed, so none is stale and no index can tell of data that are not there; one that was
cut, or whose bits have flipped, does not have its digest. Whoever may write such a file runs code here: it is read only
if this user, root or the owner of picstore's own files has written it and nobody else may. All else is set aside and
compiled anew. A folder that cannot be written, or is full, costs the compilation in each process.
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
_MAX_BYTES = 1 << 26  # of a file; the largest kernel takes 200 KB
_KEPT = 8  # files of one kernel: of processors that share a folder, and of versions between which somebody changes
_PARTIAL_SECONDS = 3600  # after which a half-written file belongs to a process that was killed
_ROOT = Path(__file__).parents[2]
_OPTIONS = "OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE"  # NUMBA_… that change the code
# Without an anchor to a line's beginning, the search is five times as fast.
_IMPORT = re.compile(rb"from (picstore[.\w]*) import (\([^)]*\)|.*)")
_NAME = re.compile(r"\w+")


class Unusable(Exception):
    """Why a file of the cache is not used."""


class KernelCache:
    """The cache of one kernel, in place of numba's: it has the methods that numba's dispatcher calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @property
    def cache_path(self) -> str | None:
        """The folder that new machine code goes to."""
        folder = cache_folders()[0]
        return None if folder is None else str(folder)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return numba's result of compiling for a signature; None to have it compiled."""
        name, key = self.name_and_key(signature, context)
        if (found := _find(name, key)) is None:
            return None
        path, payload = found
        try:
            # Adds the symbols that machine code may refer to. numba's own cache would also fill the registries of all
            # that it can compile, 70 of 135 ms for a first kernel; only compiling needs them, and fills them itself.
            find("numba.core.runtime.rtsys").initialize(context)
            content = pickle.loads(payload)  # noqa: S301 - of a trusted owner, see ``read_trusted``
            return find("numba.core.compiler.CompileResult")._rebuild(context, *content)
        except Exception as error:  # whatever else another numba makes of it
            _set_aside(path, f"numba cannot load it: {type(error).__name__}: {error}")
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep numba's result of compiling."""
        folder = cache_folders()[0]
        if folder is None or getattr(compiled.library, "has_dynamic_globals", False):  # such as addresses
            return
        payload = find("numba.core.serialize.dumps")(_reduce(compiled))
        name, key = self.name_and_key(signature, compiled.target_context)
        try:
            _write(folder / name, _HEADER + _digest(key, payload) + payload)
        except OSError as error:
            _warn_once(f"{folder} takes no compiled kernels ({error.strerror}): each process compiles them anew")

    def holds(self, signature: Any, context: Any) -> bool:
        """Whether there is machine code for a signature; sets aside what cannot be used."""
        return _find(*self.name_and_key(signature, context)) is not None

    def name_and_key(self, signature: Any, context: Any) -> tuple[str, bytes]:
        """The name of a kernel's file, and the digest of all that its machine code depends on."""
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

    # What else numba's dispatcher may ask of its cache.
    def flush(self) -> None:
        """Do nothing: each file belongs to one state of the sources, so no file has to be cleared."""

    enable = disable = flush


def _reduce(compiled: Any) -> tuple[Any, ...]:
    """Reduce a compiled kernel to the parts that the cache stores; of its environments only picstore's.

    Environments of numba's own functions import numba's modules for NumPy's arrays, which takes 15 ms.
    """
    *kept, environments = compiled._reduce()
    return *kept, tuple(each for each in environments if each.globals["__name__"].startswith("picstore"))


@cache
def cache_folders() -> tuple[Path | None, tuple[Path, ...]]:
    """The folder for new kernels, if any, and the folders to look kernels up in, in this order.

    The folder is this user's alone: where several users share one, each has another below it, and reads the first.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        candidates = [Path(given, "picstore"), Path(given, f"picstore-{os.geteuid()}")]
    else:
        candidates = [Path(__file__).with_name("__pycache__")]
        with contextlib.suppress(RuntimeError):  # a user without a home
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
    """Find a kernel's file and payload."""
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
    """Return the payload of a kernel's file; Unusable if the file's digest does not match."""
    start = len(_HEADER) + hashlib.sha256().digest_size
    if data[:start] != _HEADER + _digest(key, data[start:]):
        raise Unusable("it was cut or changed, its digest differs")
    return data[start:]


def _digest(key: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(key + payload).digest()


def read_trusted(path: Path) -> bytes:
    """Read a file that only this user, root or picstore's owner can have written, whose code runs here anyway.

    Raises:
        Unusable: others own it or may write it, or it is no file or too large.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable("it is no file")
        if status.st_uid not in (os.geteuid(), 0, _package_owner()):
            raise Unusable(f"it belongs to another user, {status.st_uid}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable("others may write it")
        if status.st_size > _MAX_BYTES:
            raise Unusable(f"it has {status.st_size:,} bytes")
        return file.read(_MAX_BYTES)


def _set_aside(path: Path, reason: str) -> None:
    """Say why a file is not used, and move it out of the way of its replacement."""
    _warn_once(f"{path} is set aside and compiled anew: {reason}")
    with contextlib.suppress(OSError):  # of a folder that cannot be written
        path.replace(f"{path}.unusable")


@cache
def _warn_once(text: str) -> None:
    if sys.stderr is not None:
        print(f"picstore: {text}", file=sys.stderr, flush=True)


def _write(path: Path, data: bytes) -> None:
    """Write a file under its name when it is whole, and remove what is too much."""
    partial = path.with_name(f"{path.name}.{os.urandom(6).hex()}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb") as file:
            file.write(data)
        partial.chmod(0o644)  # whatever the umask
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _remove_old(path)


def _remove_old(path: Path) -> None:
    """Remove a kernel's oldest files, and what writers that were killed have left."""
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
    """SHA-256 of a kernel's module and of the picstore modules that it imports, directly or indirectly.

    Changes to other modules leave the cached code valid.
    """
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
    """Digest a module's source, and list the names that it imports from picstore; neither of what is no module."""
    path = f"{_ROOT}/{module.replace('.', '/')}.py"
    if not os.path.isfile(path):  # noqa: PTH113 - of the 500 names that the standard job asks for, 400 are no modules
        return b"", ()
    with open(path, "rb") as file:  # noqa: PTH123
        source = file.read()
    found = ((package.decode(), names.decode()) for package, names in _IMPORT.findall(source))
    imported = [[package, *(f"{package}.{name}" for name in _NAME.findall(names))] for package, names in found]
    return hashlib.sha256(source).digest(), tuple(chain.from_iterable(imported))
