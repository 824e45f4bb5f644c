"""Programs that tests start in a process of their own, in forks of a process that has imported torch.

Importing torch and picstore takes a new Python 3 s of a core; a fork of that process starts and ends in 0.4 s. A
program is the main module of its fork and ends as any Python does, with the interpreter's own end. Tests of what a
process imports, and of flags and variables that Python, numba and OpenMP read when they start, start a new Python.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

LIMIT = 120  # seconds, of what takes ten

_SERVER = """
import socket, sys
sys.path[0] = sys.argv[2]
from program_server import next_program
sys.path[0] = ""
exec(next_program(socket.socket(fileno=int(sys.argv[1]))))
"""


@functools.cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        # OpenBLAS would start threads, which no fork has.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(theirs.fileno()), str(Path(__file__).parent)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class Program:
    """A running program: as much of ``subprocess.Popen``, with text of both outputs, as tests need."""

    def __init__(
        self,
        *arguments: object,
        cwd: Path | None = None,
        environment: Mapping[str, str] = os.environ,
        modules: Sequence[str] = (),
    ) -> None:
        """Start ``python ARGUMENTS`` in a session of its own; arguments are a file's or ``-c``, a source, and others.

        Args:
            modules: what the program imports that takes long, for the server to import first.
        """
        request = {
            "arguments": [*map(str, arguments)],
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(environment),
            "modules": tuple(modules),
        }
        pipes = [os.pipe() for _ in range(3)]
        with tempfile.TemporaryFile() as file:
            pickle.dump(request, file)
            file.seek(0)
            socket.send_fds(_server(), [b"1"], [file.fileno(), *(theirs for _, theirs in pipes)])
        self.stdout, stderr, self._status = (os.fdopen(ours) for ours, _ in pipes)
        for _, theirs in pipes:
            os.close(theirs)
        self.pid = int(self._status.readline())
        self.returncode: int | None = None
        self._texts: list[str] = ["", "", ""]
        self._readers = [
            threading.Thread(target=self._read, args=(number, file), daemon=True)
            for number, file in enumerate([self.stdout, stderr, self._status])
        ]

    def _read(self, number: int, file: IO[str]) -> None:
        with file:
            self._texts[number] = file.read()

    def send_signal(self, number: int) -> None:
        """Send a signal to the program alone."""
        os.kill(self.pid, number)

    def kill_all(self) -> None:
        """Kill the program and what it started."""
        os.killpg(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What was written to stdout and stderr, once the program and all that write there have ended.

        Raises:
            subprocess.TimeoutExpired: they have not; this can be called again.
        """
        for reader in self._readers:
            if reader.ident is None:
                reader.start()
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired("program", timeout or 0)
        output, errors, status = self._texts
        self.returncode = int(status)
        return output, errors


def _finish(program: Program) -> str:
    try:
        output, errors = program.communicate(LIMIT)
    except subprocess.TimeoutExpired:
        program.kill_all()
        pytest.fail(f"hangs: {program.communicate()[1][-4000:]}")
    assert program.returncode == 0, errors[-4000:]
    return output


def run_program(*arguments: object, **options: Any) -> str:
    """What a program that succeeds writes to stdout; options are those of ``Program``."""
    return _finish(Program(*arguments, **options))


def run_ranks(count: int, *arguments: object, environment: Mapping[str, str] = os.environ, **options: Any) -> str:
    """What a program writes to stdout in processes that torch.distributed joins, as torchrun starts them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [
        {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        for rank in range(count)
    ]
    started = [
        Program(*arguments, environment={**environment, **address, **{k: str(v) for k, v in rank.items()}}, **options)
        for rank in ranks
    ]
    return "".join([_finish(program) for program in started])
