"""The main program of a decoder process, the other side of ``decoder_process.py``."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.engine import stderr_capture
from picstore.prepare.image import decoder_process
from picstore.prepare.image.decode_image import decode_file
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.size_limits import limit_memory


def main() -> None:
    """Decode the files that come by the socket; arguments: its descriptor, and the seconds that a file may take."""
    connection, seconds = Connection(int(sys.argv[1])), float(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    for number in (signal.SIGALRM, signal.SIGIO, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    stderr_capture.capture_stderr()
    decoder_process.enter()
    os.chdir("/")
    gc.enable()
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        while True:
            request, data = json.loads(connection.recv_bytes()), connection.recv_bytes()
            with _bounded(connection, seconds):
                reply, pixels = _decode(request, data)
            connection.send_bytes(json.dumps(reply).encode())
            if "error" not in reply:
                connection.send_bytes(pixels)


@contextlib.contextmanager
def _bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """Have the kernel end this process after a time, or when the parent dies, even where C code never returns.

    While the parent waits for its answer, all that its socket can tell is that it was closed; the signal of that ends a
    process that does not handle it.
    """
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if connection.poll():  # closed before
            raise EOFError
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        fcntl.fcntl(connection, fcntl.F_SETFL, flags)


def _decode(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    limit_memory(request["max_pixels"])
    settings = EncodeSettings(max_pixels=request["max_pixels"], background=tuple(request["background"]))
    try:
        decoded = decode_file(data, settings=settings, name=request["name"])
    except ImageError as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": "not enough memory"}, b""
    image = decoded.image
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    reply = {
        "mode": image.mode,
        "size": image.size,
        "origin": decoded.origin,
        "orientation": decoded.coordinates.orientation,
        "upright_size": decoded.coordinates.upright_size,
    }
    return reply, image.tobytes()
