"""Loaders' processes as forks of a process that has imported what they import.

A loader's process is a new Python, and imports numba and the kernels in 0.4 s of a core; a fork has them at once. Its
first program is that of any helper process, and its parent is the process that asked for it, as the system gives the
child of a process that has ended to the next one above that takes such children. Where a fork would differ from a new
Python, in its environment for instance, a new one starts.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from picstore.helper_process import NUMBA_EXTRAS, module_folders, start_helper

# What is read while a process starts and imports; a fork has the values that its server started with.
_READ_FIRST = ("HOME", "LD_", "MALLOC", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PICSTORE_", "PYTHON", "TMP", "XDG_")
_PR_SET_CHILD_SUBREAPER = 36
_asking = threading.Lock()


def start_loader_process(
    main: str,
    *arguments: object,
    descriptors: Sequence[int],
    last_words: int,
    without: Sequence[str],
    environment: Mapping[str, str],
    start_new_session: bool,
) -> subprocess.Popen[Any]:
    """Start a loader's process; what ``start_helper`` does."""
    options: dict[str, Any] = {
        "descriptors": descriptors,
        "last_words": last_words,
        "without": without,
        "environment": environment,
        "start_new_session": start_new_session,
    }
    if sys.platform != "linux":
        return start_helper(main, *arguments, **options)
    server, pid, read = _server()
    if (pid, read, NUMBA_EXTRAS, True) != (os.getpid(), _environment(environment), without, start_new_session):
        return start_helper(main, *arguments, **options)
    sent = [1, 2, *descriptors, last_words]
    told = ["\n".join(module_folders()), main, ",".join(without), str(last_words), *map(str, arguments)]
    request = {
        "arguments": told,
        "descriptors": sent,
        "cwd": str(Path.cwd()),
        "environment": {**os.environ, **environment},
        "parent": pid,
    }
    with _asking:
        _adopt(True)
        try:
            socket.send_fds(server, [pickle.dumps(request)], sent)
            return _Adopted(int(server.recv(20)))  # type: ignore[return-value]
        finally:
            _adopt(False)


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**os.environ, **added}.items() if name.startswith(_READ_FIRST)}


def _adopt(whether: bool) -> None:
    """Become the parent of what this process's children leave, or no longer."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0) == 0


class _Adopted:
    """As much of ``subprocess.Popen`` as a loader needs, of a child that this process has not started itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        if self.returncode is None and self._waiting.acquire(blocking=False):
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # in a fork of its parent
                pid, status = self.pid, 0
            finally:
                self._waiting.release()
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or 60)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a loader's process", timeout or 60)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@functools.cache
def _server() -> tuple[socket.socket, int, dict[str, str]]:
    """The connection to this process's server, which ends with it, its process id, and the server's environment."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with theirs:
        program = Path(__file__).with_name("loader_process_server.py")
        process = subprocess.Popen(
            [sys.executable, str(program), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:
            ours.close()
            process.wait()

    atexit.register(end)
    return ours, pid, _environment({"OPENBLAS_NUM_THREADS": "1"})
