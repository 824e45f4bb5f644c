"""Main functions of a loader's process that misbehaves, for ``process._MAIN``."""

from __future__ import annotations

import ctypes
import multiprocessing.reduction
import os
import signal
import socket
import struct
from multiprocessing.connection import Connection

from picstore.train.pipeline.batch_threads import Pipeline
from picstore.train.pipeline.loader_process_main import main


def acknowledge() -> None:
    multiprocessing.reduction.ACKNOWLEDGE = True  # type: ignore[misc]
    main()


def raise_in_send() -> None:
    def send_fds(*_: object) -> None:
        raise RuntimeError("the fault")

    socket.send_fds = send_fds  # type: ignore[assignment]
    main()


def die_within_a_message() -> None:
    """Send a part of the third message, and be killed; the ones before may wait in the parent for their turn."""
    send, sent = Connection._send_bytes, 0  # type: ignore[attr-defined]

    def send_bytes(self: Connection, content: memoryview) -> None:
        nonlocal sent
        sent += 1
        if sent < 3:
            send(self, content)
            return
        os.write(self.fileno(), struct.pack("!i", len(content)) + bytes(content[: len(content) // 2]))
        os.kill(os.getpid(), signal.SIGKILL)

    Connection._send_bytes = send_bytes  # type: ignore[attr-defined]
    main()


def crash_in_send() -> None:
    def send_fds(*_: object) -> None:
        ctypes.string_at(0)

    socket.send_fds = send_fds  # type: ignore[assignment]
    main()


def fail_at_the_start() -> None:
    raise ImportError("the fault")


def lose_a_message() -> None:
    def start(self: Pipeline) -> None:
        raise EOFError("Ran out of input")  # as of an empty file that is unpickled

    Pipeline.start = start  # type: ignore[method-assign]
    main()
