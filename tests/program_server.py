"""The process that ``programs`` forks programs from: it has imported what they import, and has no thread."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import socket
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any

MODULES = ("numpy", "PIL.Image", "torch", "torch.utils.data", "torchvision.transforms.v2", "picstore.train.loader")


def next_program(connection: socket.socket) -> CodeType:
    """Fork for each request that comes; what to run, in the forks.

    The server's end is the connection's.
    """
    _import(MODULES)
    parents: list[int] = []  # of programs that run
    while True:
        ready, descriptors, *_ = socket.recv_fds(connection, 1, 4)
        if not ready:
            sys.exit()
        with os.fdopen(descriptors[0], "rb") as file:
            request = pickle.load(file)  # noqa: S301 - of our own test
        _import(request["modules"])
        parent = os.fork()
        if parent == 0:
            connection.close()
            _fork_and_wait(*descriptors[1:])
            return _enter(request)
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        parents = [each for each in [*parents, parent] if os.waitpid(each, os.WNOHANG)[0] == 0]


def _import(names: tuple[str, ...]) -> None:
    for name in names:
        importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()  # a collection writes to every object that it visits, which copies shared memory


def _fork_and_wait(stdout: int, stderr: int, status: int) -> None:
    """Fork again; the parent reports the child's number, and its status at its end."""
    child = os.fork()
    if child:
        os.close(stdout)
        os.close(stderr)
        os.write(status, f"{child}\n".encode())
        os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in (stdout, stderr, status):
        os.close(descriptor)


def _enter(request: dict[str, Any]) -> CodeType:
    """Become the process that Python would start with these arguments."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    program, *arguments = request["arguments"]
    if program == "-c":
        source, *arguments = arguments
        sys.argv, name = ["-c", *arguments], "<string>"
    else:
        source, name = Path(program).read_text(), program
        sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
        sys.modules["__main__"].__file__ = program
    return compile(source, name, "exec", dont_inherit=True)
