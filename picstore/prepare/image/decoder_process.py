"""Decoding of one image at a time in a process that the kernel ends after ``SECONDS`` or beyond a limit of memory.

For decoders that may take any time or crash, where no engine limits their process: in the user's own program, and for
drawings anywhere. A process is kept for the next image; a second thread gets one of its own.

    this process                                       decoder process (``decoder_process_main.py``)
    {"name", "max_pixels", "background"}, the file  →
                                                    ←  {"error"}, or {"mode", "size", …} and the pixels
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any

from PIL import Image

from picstore.errors import ImageError
from picstore.helper_process import NUMBA_EXTRAS, start_helper
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.size_limits import check_size

# Seconds that decoding one image may take.
SECONDS = 60
_KEPT = 4  # idle processes, of 60 MB each
_MODES = {"L": 1, "RGB": 3}  # bytes a pixel
_MAX_HEADER = 1 << 16
_MAIN = "picstore.prepare.image.decoder_process_main:main"

# Whether this is a decoder process.
_inside = False


def enter() -> None:
    """Make this process a decoder process, which decodes all files itself."""
    global _inside
    _inside = True


def is_inside() -> bool:
    """Whether this is a decoder process."""
    return _inside


class _DecoderProcess:
    """A decoder process, and this side of its socket."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            self._process = start_helper(
                _MAIN,
                descriptor,
                SECONDS,
                descriptors=[descriptor],
                without=NUMBA_EXTRAS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def ask(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Connection]:
        """Send a file; return the reply's header, and the connection from which its pixels can be received."""
        self.connection.send_bytes(json.dumps(request).encode())
        self.connection.send_bytes(data)
        reply: dict[str, Any] = json.loads(self.connection.recv_bytes(_MAX_HEADER))
        return reply, self.connection

    def close(self) -> int:
        """Kill it, and return its exit status."""
        self.connection.close()
        self._process.kill()
        return self._process.wait()

    def wait(self) -> int:
        """Wait for the end of a process that has closed its socket, and return its exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return self.close()


_idle: list[_DecoderProcess] = []
_lock = threading.Lock()


@atexit.register
def _close_all() -> None:
    while _idle:
        _idle.pop().close()


def _forget_all() -> None:
    """Forget the processes of the program that this one is a fork of."""
    global _idle, _lock
    for process in _idle:
        process.connection.close()
        process._process.returncode = 0  # a child of another process
    _idle, _lock = [], threading.Lock()


os.register_at_fork(after_in_child=_forget_all)


def decode(data: bytes, *, settings: EncodeSettings, name: str) -> tuple[Image.Image, str, CoordinateMap]:
    """Decode a file as :func:`picstore.prepare.image.decode_image.decode_file` does, but do not resize it.

    Returns:
        The image in mode "L" or "RGB", the kind of its source, and the map from the source's pixels.

    Raises:
        ImageError: as ``decode_file``; or the file takes more than ``SECONDS`` or the memory of its pixels, or crashes
            its decoder.
    """
    request = {"name": name, "max_pixels": settings.max_pixels, "background": list(settings.background)}
    with _lock:
        process = _idle.pop() if _idle else None
    process = process or _DecoderProcess()
    try:
        reply, connection = process.ask(request, data)
        if "error" not in reply:
            width, height = reply["size"]
            check_size(width, height, max_pixels=settings.max_pixels)
            pixels = connection.recv_bytes(_MODES[reply["mode"]] * width * height)
    except (EOFError, OSError) as error:
        raise ImageError(_describe_end(process.wait())) from error
    except BaseException:
        process.close()
        raise
    with _lock:
        if len(_idle) < _KEPT:
            _idle.append(process)
            process = None
    if process is not None:
        process.close()
    if "error" in reply:
        raise ImageError(str(reply["error"]))
    upright, stored = tuple(reply["upright_size"]), (width, height)
    return (
        Image.frombytes(reply["mode"], stored, pixels),
        str(reply["origin"]),
        CoordinateMap(reply["orientation"], (upright[0], upright[1]), stored),
    )


def _describe_end(status: int) -> str:
    if status == -signal.SIGALRM:
        return f"takes more than {SECONDS} s to decode"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"crashed its decoder, or took too much memory ({signal.Signals(-status).name})"
    return f"crashed its decoder (exit code {status})"
