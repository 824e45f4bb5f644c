"""Fork server: a process that has imported the modules that tasks need, and forks each worker process.

Starting Python and importing the modules takes 0.5 s, a fork 30 ms. Unlike multiprocessing's fork server, this server
and its children import neither from the working directory (``helper_process.py``) nor the user's main module.

    this process                          server
    two descriptors         ───────────→  forks
                            ←───────────  pid of the child ┐ by the second descriptor, a pipe
                            ←───────────  its exit status  ┘
    folder and function     ───────────→  child, by the first descriptor, a socket for it alone
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from picstore.errors import PicstoreError
from picstore.helper_process import NUMBA_EXTRAS, allow_imports, start_helper

_NUMBER = struct.Struct("q")


class Forked:
    """Process that the server forked, and this process's end of a socket to the forked process."""

    def __init__(self, connection: Connection, status: int) -> None:
        self.connection, self._status = connection, status
        self._pid = _read_number(status)
        self._exitcode: int | None = None

    def kill(self) -> None:
        if self._exitcode is None and not select.select([self._status], [], [], 0)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end of the process; return its exit status, which is negative if a signal ended it."""
        if self._exitcode is None:
            try:
                self._exitcode = _read_number(self._status)
            except EOFError:  # The server was killed before it could report the exit status.
                self._exitcode = 255
            os.close(self._status)
        return self._exitcode

    def close(self) -> None:
        """Kill the process, wait for its end, and close the socket."""
        self.kill()
        self.wait()
        self.connection.close()


class ForkServer:
    """Server process that loads code once, for all processes that it forks.

    ``loaded`` names what to load: a ``module`` to import, or a ``module:function`` to call.
    """

    def __init__(self, *loaded: str) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair()
        self._line.setblocking(True)
        with theirs:
            main = f"{__name__}:serve_forks"
            self._process = start_helper(
                main,
                theirs.fileno(),
                *loaded,
                descriptors=[theirs.fileno()],
                without=NUMBA_EXTRAS,
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the server runs and was started by this process; a fork of this process cannot use the server."""
        return self.pid == os.getpid() and self._process.poll() is None

    def fork(self, function: Any) -> Forked:
        """Fork a process that calls ``function(connection)`` in the caller's working directory.

        ``function`` must be picklable; ``connection`` is the process's end of a socket. Raise PicstoreError if the
        server has ended.
        """
        ours, theirs = Pipe()
        status, told = os.pipe()
        try:
            with theirs, self._lock:
                try:
                    socket.send_fds(self._line, [b"f"], [theirs.fileno(), told])
                finally:
                    os.close(told)
            forked = Forked(ours, status)
        except (OSError, EOFError) as error:
            os.close(status)
            ours.close()
            text = "the process that forks workers has ended; stderr says why, or it was killed, for want of memory"
            raise PicstoreError(text) from error
        # Ignore the error of sending to a process that is dead already: the caller will notice when it receives.
        with contextlib.suppress(OSError):
            ours.send((str(Path.cwd()), function))
        return forked

    def wait(self) -> None:
        """Wait until the server has loaded its code."""
        self.fork(id).close()

    def close(self) -> None:
        """End the server; the processes that it forked keep running."""
        atexit.unregister(self.close)
        self._line.close()
        if self.pid == os.getpid():
            self._process.kill()
            self._process.wait()
        else:
            self._process.returncode = 0  # Popen must not wait for the server, which is not this process's child.


def _read_number(descriptor: int) -> int:
    data = os.read(descriptor, _NUMBER.size)
    if len(data) < _NUMBER.size:
        raise EOFError
    return int(_NUMBER.unpack(data)[0])


def serve_forks() -> None:
    """Run the server process: load the code named in ``sys.argv``, then fork a child for each request.

    A request brings two descriptors: the child's end of the connection, and a pipe into which the server writes the
    child's process id and, once the child has ended, its exit status.
    """
    # Ctrl-C signals the whole process group, but only the parent process must react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load(sys.argv[2:])
    # Without ``freeze``, a child's first garbage collection would write to each object, and so copy the shared memory.
    gc.freeze()
    gc.enable()
    line = socket.socket(fileno=int(sys.argv[1]))
    running: dict[int, int] = {}
    # Python runs signal handlers only after ``select`` has returned, so the end of a child just before ``select`` would
    # be reported only at the next fork. Therefore the signal also writes to a pipe, which makes ``select`` return.
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([line.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _report_ends(running)
        if line.fileno() not in ready:
            continue
        data, descriptors, *_ = socket.recv_fds(line, 1, 2)
        if not data:
            return
        connection, told = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            line.close()
            for descriptor in (ended, wake, told, *running.values()):
                os.close(descriptor)
            _run_child(Connection(connection))
        running[pid] = told
        _tell(told, pid)
        os.close(connection)


def _load(names: list[str]) -> None:
    for name in names:
        module, _, function = name.partition(":")
        with contextlib.suppress(ImportError):
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
    # To import numba in half the time, the server was started without the modules NUMBA_EXTRAS; tasks may import them.
    allow_imports()


def _tell(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # The parent process has closed the pipe, so it needs no message.
        os.write(descriptor, _NUMBER.pack(number))


def _report_ends(running: dict[int, int]) -> None:
    """Send the exit status of each ended child; ``running`` maps process ids to descriptors of pipes."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        if (told := running.pop(pid, None)) is not None:
            _tell(told, os.waitstatus_to_exitcode(status))
            os.close(told)


def _run_child(connection: Connection) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        folder, function = connection.recv()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        function(connection)
        code = 0
    except EOFError:  # The parent closed the socket without sending a function.
        pass
    except BaseException:  # An exception must not continue in the server's loop, from which this process was forked.
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
