"""Compilation of kernels ahead of their use, in as many processes as the machine has cores, announced on stderr.

The machine code goes through the cache (``kernel_cache.py``): one process compiles a kernel, and all load it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, cast

from picstore.cores import count_cores
from picstore.errors import counted
from picstore.helper_process import NUMBA_EXTRAS, start_helper
from picstore.kernels.jit import compile_kernel, is_cached
from picstore.kernels.kernel_cache import cache_folders
from picstore.kernels.numba_names import CACHE, available

# The kernels that take longest to compile, up to 3.5 s, come first, so that processes end at about the same time.
_LONGEST = ("open_stream", "decode_rows", "resample_box", "gather_nearest", "cut_all")
_NOWHERE = "in each process, as no folder keeps them: set NUMBA_CACHE_DIR to a folder that can be written"
# Seconds to wait while another process compiles kernels: more than all kernels take on one busy core.
_LOCK_SECONDS = 300.0
Advance = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of :func:`compile_ahead`: number of kernels compiled, number found in the cache, and time in seconds."""

    compiled: int
    cached: int
    seconds: float


def compile_ahead(kernels: Iterable[Any], *, processes: int | None = None) -> Compiled:
    """Compile the kernels that the cache lacks, with a notice on stderr.

    If several processes call the function at the same time, one compiles and the others wait. Without a folder for the
    cache, each process compiles the kernels for itself.

    Args:
        kernels: dispatchers of :func:`picstore.kernels.jit.kernel`.
        processes: number of worker processes to compile in; by default one for each core.
    """
    started = time.monotonic()
    wanted = list(dict.fromkeys(kernels))
    missing = [each for each in wanted if not is_cached(each)]
    if missing:
        folder = cache_folders()[0] if available(CACHE) else None
        with _locked(folder):
            missing = [each for each in missing if not is_cached(each)]
            if missing:
                with _noted(), _announced(len(missing), "once on this machine" if folder else _NOWHERE) as advance:
                    _compile(missing, (processes or count_cores()) if folder else 1, advance)
    return Compiled(len(missing), len(wanted) - len(missing), time.monotonic() - started)


# Number of threads of this process that are compiling in ``compile_ahead``.
_calls = 0


def is_compiling() -> bool:
    """Return whether a thread of this process is compiling kernels, which takes some seconds once on each machine."""
    return _calls > 0


@contextlib.contextmanager
def _noted() -> Iterator[None]:
    global _calls
    _calls += 1
    try:
        yield
    finally:
        _calls -= 1


@contextlib.contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Hold a lock in the cache's folder, if the folder's file system supports locks.

    Without the lock, all ranks of a training run would compile the same kernels at its start. If a process hangs while
    it holds the lock, perhaps on another machine, other processes continue without the lock.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):
                # Do not follow symbolic links, because other users may be able to write to the folder.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(folder / "picstore.lock", flags, 0o644)
                stack.callback(os.close, descriptor)
                _wait_for_lock(descriptor)
                # Unlock before closing the file: closing alone keeps the lock while a forked process has the file open.
                stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


def _wait_for_lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.05)
    print(
        f"picstore: another process has compiled kernels for {_LOCK_SECONDS:.0f} s; compiling beside it",
        file=sys.stderr,
        flush=True,
    )


@contextlib.contextmanager
def _announced(number: int, how_often: str) -> Iterator[Advance]:
    """Announce on stderr, by a bar or a line, that kernels are compiled; yield a function to call after each."""
    text = f"compiling {counted(number, 'kernel')}, {how_often}"
    if sys.stderr is None or not sys.stderr.isatty():
        started = time.monotonic()
        print(f"picstore: {text}", file=sys.stderr, flush=True)
        yield lambda: None
        took = time.monotonic() - started
        print(f"picstore: compiled {counted(number, 'kernel')} in {took:.0f} s", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(text, total=number)
        yield lambda: progress.advance(task)


def _compile(kernels: list[Any], processes: int, advance: Advance) -> None:
    names = {each: f"{each.py_func.__module__} {each.py_func.__name__}" for each in kernels}
    ranks = dict(zip(_LONGEST, count()))
    queue = deque(sorted(kernels, key=lambda each: ranks.get(each.py_func.__name__, len(ranks))))
    helpers = [_Helper() for _ in range(min(processes, len(kernels)) - 1)]
    try:
        threads = [threading.Thread(target=helper.work, args=(queue, names, advance)) for helper in helpers]
        for thread in threads:
            thread.start()
        with contextlib.suppress(IndexError):
            while True:
                compile_kernel(queue.popleft())
                advance()
        for thread in threads:
            thread.join()
    finally:
        queue.clear()
        for helper in helpers:
            helper.close()


class _Helper:
    """Separate process that compiles one kernel after another."""

    def __init__(self) -> None:
        self._process = start_helper(
            f"{__name__}:serve",
            without=NUMBA_EXTRAS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # If a kernel does not compile, its first call in the parent raises the error.
            stderr=subprocess.DEVNULL,
            text=True,
            # Detach this process from the terminal, so that Ctrl-C there interrupts only the parent.
            start_new_session=True,
        )

    def work(self, queue: deque[Any], names: dict[Any, str], advance: Advance) -> None:
        """Let the separate process compile kernels of ``queue``, until the queue is empty or that process has died."""
        commands, answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        with contextlib.suppress(IndexError, OSError, ValueError):
            while True:
                print(names[queue.popleft()], file=commands, flush=True)
                if not answers.readline():
                    return
                advance()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Compile each kernel that a line on stdin names by module and function; print a line after each kernel."""
    for line in sys.stdin:
        module, name = line.split()
        compile_kernel(getattr(importlib.import_module(module), name))
        print("done", flush=True)
