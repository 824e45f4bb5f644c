"""Compilation of kernels ahead of their use, in as many processes as there are cores, announced on stderr.

The machine code goes through the cache (``kernel_cache.py``): what one process compiles, all load.
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
from picstore.helper_process import NUMBA_EXTRAS, start_helper
from picstore.kernels.jit import compile_kernel, is_cached
from picstore.kernels.kernel_cache import cache_folders
from picstore.kernels.numba_names import CACHE, available

# Kernels that take longest to compile come first, so that processes end together: 3.5, 3.3, 2.0 and 1.4 s; the others
# take 0.1 to 1.2.
_LONGEST = ("open_stream", "decode_rows", "resample_box", "gather_nearest", "cut_all")
_NOWHERE = "in each process, as none keeps them: set NUMBA_CACHE_DIR to a folder that can be written"
_LOCK_SECONDS = 300.0  # longer than one busy core takes for all kernels
Advance = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Result of :func:`compile_ahead`: numbers of kernels compiled and already cached, and the seconds it took."""

    compiled: int
    cached: int
    seconds: float


def compile_ahead(kernels: Iterable[Any], *, processes: int | None = None) -> Compiled:
    """Compile the kernels that the cache lacks, and say so on stderr; of several processes of a machine one does.

    Without a folder for the cache this process compiles them for itself.

    Args:
        kernels: dispatchers of :func:`picstore.kernels.jit.kernel`.
        processes: how many compile at once; one a core by default.
    """
    started = time.monotonic()
    wanted = list(dict.fromkeys(kernels))
    missing = [each for each in wanted if not is_cached(each)]
    if missing:
        folder = cache_folders()[0] if available(CACHE) else None
        with _locked(folder):
            missing = [each for each in missing if not is_cached(each)]
            if missing:
                with _announced(len(missing), "once on this machine" if folder else _NOWHERE) as advance:
                    _compile(missing, (processes or count_cores()) if folder else 1, advance)
    return Compiled(len(missing), len(wanted) - len(missing), time.monotonic() - started)


@contextlib.contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Hold a lock in the cache's folder, if its file system has locks: ranks of a training start at the same time.

    It saves work, and nothing else depends on it. So a process goes on without it if its holder hangs, on another
    machine perhaps.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):
                # Not through a link: the folder may be one that others can write to.
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(folder / "picstore.lock", flags, 0o644)
                stack.callback(os.close, descriptor)
                _wait_for_lock(descriptor)
                stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)  # a fork has the file open for longer
        yield


def _wait_for_lock(descriptor: int) -> None:
    """Lock an open file, or give up after _LOCK_SECONDS, and say so."""
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
    """Announce that kernels are compiled: a bar on a terminal, elsewhere a line; yields what each kernel calls."""
    text = f"compiling {number} kernel{'s' * (number > 1)}, {how_often}"
    if sys.stderr is None or not sys.stderr.isatty():
        print(f"picstore: {text}", file=sys.stderr, flush=True)
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(text, total=number)
        yield lambda: progress.advance(task)


def _compile(kernels: list[Any], processes: int, advance: Advance) -> None:
    """Compile kernels, the longest first, in this process and in helpers of it."""
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
    """A process that compiles one kernel after another."""

    def __init__(self) -> None:
        self._process = start_helper(
            f"{__name__}:serve",
            without=NUMBA_EXTRAS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a kernel that does not compile here fails where it is called
            text=True,
            start_new_session=True,  # an interrupt from the keyboard goes to the parent alone
        )

    def work(self, queue: deque[Any], names: dict[Any, str], advance: Advance) -> None:
        """Take kernels from the queue until it is empty, or the process has ended."""
        commands, answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        with contextlib.suppress(IndexError, OSError, ValueError):
            while True:
                print(names[queue.popleft()], file=commands, flush=True)
                if not answers.readline():
                    return
                advance()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Compile the kernels that stdin names, a module and a function a line; answer each with a line."""
    for line in sys.stdin:
        module, name = line.split()
        compile_kernel(getattr(importlib.import_module(module), name))
        print("done", flush=True)
