"""Tasks that tests run in the engine's processes, and an engine without processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from picstore.errors import Corrupt
from picstore.prepare.engine import library_errors, worker_processes


class InlineEngine(worker_processes.LocalEngine):
    """Runs tasks in this process, for tests that are not about processes."""

    def run(
        self, function: Any, tasks: Any, *, on_progress: Any = lambda _: None
    ) -> Generator[tuple[Any, Any], None, None]:
        while tasks:
            task = tasks.popleft()
            yield task, function(task, on_progress)


def forks_of_the_server() -> list[str]:
    """Processes that the engine's fork server has forked and that still run."""
    pid = worker_processes.start_fork_server()._process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def double(task: int, on_progress: Callable[[int], object]) -> int:
    on_progress(1)
    return 2 * task


def die_on_three(task: int, on_progress: Callable[[int], object]) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return double(task, on_progress)


def die_once(task: Path, on_progress: Callable[[int], object]) -> str:
    if not task.exists():
        task.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return "done"


def raise_damage(task: int, on_progress: Callable[[int], object]) -> int:
    raise Corrupt(f"task {task}", "somewhere", 7)


class Unreadable:
    """A task whose module other processes do not find."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return _import_elsewhere, (os.getpid(),)


def _import_elsewhere(pid: int) -> Unreadable:
    raise ModuleNotFoundError("No module named 'elsewhere'")


def process_id(task: object, on_progress: Callable[[int], object]) -> int:
    return os.getpid()


def scipy_is_there(task: int, on_progress: Callable[[int], object]) -> tuple[bool, bool]:
    """Whether SciPy is imported here, and whether it can be."""
    before = "scipy" in sys.modules
    import scipy.linalg

    return before, bool(scipy.linalg)


def working_directory(task: int, on_progress: Callable[[int], object]) -> Path:
    return Path.cwd()


def die_afterwards(task: int, on_progress: Callable[[int], object]) -> int:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return task


def wait_and_touch(task: Path, on_progress: Callable[[int], object]) -> None:
    task.with_suffix(".started").touch()
    time.sleep(3)
    task.touch()


def hang_on_three(task: int, on_progress: Callable[[int], object]) -> int:
    with worker_processes.time_limit(0.5):
        if task == 3:
            ctypes.PyDLL(None).sleep(60)  # in C, with the GIL
    return double(task, on_progress)


def outlive_the_limit(task: int, on_progress: Callable[[int], object]) -> int:
    with worker_processes.time_limit(0.3):
        pass
    time.sleep(0.6)
    return double(task, on_progress)


def wait_on_a_node(task: Path, on_progress: Callable[[int], object]) -> str:
    """Note the node in a file of the task's name, and wait for a file with ``.go`` appended."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    with task.open("a") as file:
        file.write(node + "\n")
    deadline = time.monotonic() + 60
    while not task.with_suffix(".go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    on_progress(1)
    return node


def lose_the_worker(task: int, on_progress: Callable[[int], object]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail_by_a_bug(task: int, on_progress: Callable[[int], object]) -> None:
    raise AttributeError("a bug")


def chatter(task: int, on_progress: Callable[[int], object]) -> str:
    """Print ``task`` lines on file descriptor 2, as a C library does, and return the first line captured."""
    for k in range(task):
        with contextlib.suppress(BlockingIOError):
            os.write(2, f"line {k} \x1b[1m of a library\n".encode())
    return library_errors.take_first_line()


def crash(task: int, on_progress: Callable[[int], object]) -> None:
    print("a line of Python's", file=sys.stderr)
    ctypes.string_at(0)
