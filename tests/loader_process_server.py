"""The process that ``loader_processes`` forks loaders' processes from."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from types import CodeType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from picstore.helper_process import NUMBA_EXTRAS

sys.modules.update(dict.fromkeys(NUMBA_EXTRAS))  # type: ignore[arg-type]

import picstore.train.pipeline.loader_process_main  # noqa: E402, F401
from picstore.kernels.ahead import compile_ahead  # noqa: E402
from picstore.kernels.jit import compile_kernel  # noqa: E402
from picstore.train.cpu.needed_kernels import standard_kernels  # noqa: E402

_HIGH = 512  # above the descriptors of a test
_FIRST = Path(sys.modules["picstore.helper_process"].__file__ or "").with_name("helper_main.py")


def next_process(connection: socket.socket) -> CodeType:
    """Fork for each request that comes; what to run, in the forks. The server's end is the connection's."""
    kernels = standard_kernels()
    compile_ahead(kernels)
    for kernel in kernels:
        compile_kernel(kernel)
    gc.disable()
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    code = compile(_FIRST.read_text(), str(_FIRST), "exec", dont_inherit=True)
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 16)
        if not message:
            sys.exit()
        request = pickle.loads(message)  # noqa: S301 - of our own test
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            while os.getppid() != request["parent"]:
                time.sleep(0.0005)
            connection.send(str(os.getpid()).encode())
            connection.close()
            _enter(request, descriptors)
            return code
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _enter(request: dict[str, Any], descriptors: list[int]) -> None:
    """Become the process that ``start_helper`` would start; its descriptors have the numbers of its parent's."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [str(_FIRST), *request["arguments"]]
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(high, request["descriptors"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


exec(next_process(socket.socket(fileno=int(sys.argv[1]))))  # noqa: S102 - as the main program, with its end
