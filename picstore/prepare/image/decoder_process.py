"""Decoding of one image, in this process or in a decoder process whose time and memory the kernel limits.

Decoders that may hang or crash run in a decoder process: in the user's program, these are all decoders except Pillow's;
in an engine's process, which may be lost, only drawings. Idle decoder processes are kept for later images.

    this process                                       decoder process (``main``)
    {"name", "max_pixels", "background"}, the file  →
                                                    ←  {"error"}, or {"mode", "size", …} and the pixels
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.helper_process import NUMBA_EXTRAS, start_helper
from picstore.prepare.engine import library_errors
from picstore.prepare.image.decode_image import Decoded, decode_here, decode_opened, resize_upright
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.format_decoders import neither_hangs_nor_crashes
from picstore.prepare.image.size_limits import check_size, limit_memory
from picstore.prepare.image.svg import is_svg

# Seconds of decoding after which the operating system ends a decoder process; its image then fails.
SECONDS = 60
# Number of idle decoder processes to keep; each takes 60 MB.
_KEPT = 4
_MODES = {"L": 1, "RGB": 3}  # bytes per pixel, by mode of the decoded image
_MAX_HEADER = 1 << 16


def decode_any(
    source: bytes | Image.Image | U8, *, settings: EncodeSettings, name: str = "", bounded: bool = False
) -> Decoded:
    """Decode any source to upright pixels in grey or RGB, of the size that ``settings.resize`` asks for.

    Args:
        source: bytes of a file in a format that docs/formats.md lists, a PIL image, or a uint8 array of shape (H, W),
            (H, W, 1), (H, W, 3) or, with alpha, (H, W, 4).
        settings: only ``resize``, ``background`` and ``max_pixels`` are used.
        name: name of the file; its extension identifies formats without a magic number.
        bounded: whether to decode a file as :func:`decode_bounded` does.

    Raises:
        ImageError: the source is not an image, is damaged, too large, or of a kind that cannot be read.
    """
    if isinstance(source, np.ndarray):
        return decode_opened(_from_array(source), origin="array", settings=settings)
    if isinstance(source, Image.Image):
        return decode_opened(source, origin="PIL image", settings=settings)
    return (decode_bounded if bounded else decode_file)(source, settings=settings, name=name)


def _from_array(array: U8) -> Image.Image:
    shape = array.shape
    if array.dtype != np.uint8:
        raise ImageError(f"array of dtype {array.dtype}; images are uint8")
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)) or 0 in shape:
        raise ImageError(f"array of shape {shape}; images are (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if len(shape) == 3 and shape[2] == 1:
        array = array[:, :, 0]
    return Image.fromarray(array)


def decode_file(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode a file in this process; decode an SVG in a decoder process, whose memory can be limited."""
    return (decode_apart if is_svg(data) else decode_here)(data, settings=settings, name=name)


def decode_bounded(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode a file so that this process cannot hang or crash: in a decoder process, unless Pillow is safe for it."""
    here = neither_hangs_nor_crashes(data, max_pixels=settings.max_pixels)
    return (decode_here if here else decode_apart)(data, settings=settings, name=name)


def decode_foreign(data: memoryview | U8, *, width: int, height: int, name: str) -> U8:
    """Decode a foreign file of an index (docs/format.md, References) to upright RGB, uint8 (H, W, 3).

    Raise ImageError if the file does not decode to ``width`` × ``height`` pixels.
    """
    try:
        pixels = decode_bounded(bytes(data), settings=EncodeSettings(max_pixels=width * height), name=name).rgb()
    except ImageError as error:
        raise ImageError(f"does not decode: {error}") from error
    if pixels.shape != (height, width, 3):
        text = f"{pixels.shape[1]} × {pixels.shape[0]} pixels instead of {width} × {height}"
        raise ImageError(f"decodes to {text}")
    return pixels


def decode_apart(data: bytes, *, settings: EncodeSettings, name: str = "") -> Decoded:
    """Decode a file in a decoder process; raise ImageError also if the process crashes or exceeds time or memory."""
    if not data:
        raise ImageError("empty file")
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
    upright = tuple(reply["upright_size"])
    coordinates = CoordinateMap(reply["orientation"], (upright[0], upright[1]), (width, height))
    image = Image.frombytes(reply["mode"], (width, height), pixels)
    return resize_upright(image, coordinates, origin=str(reply["origin"]), settings=settings)


def _describe_end(status: int) -> str:
    if status == -signal.SIGALRM:
        return f"takes more than {SECONDS} s to decode"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"crashed its decoder, or took too much memory ({signal.Signals(-status).name})"
    return f"crashed its decoder (exit code {status})"


class _DecoderProcess:
    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            descriptor = theirs.fileno()
            self._process = start_helper(
                f"{__name__}:main",
                descriptor,
                SECONDS,
                descriptors=[descriptor],
                without=NUMBA_EXTRAS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def ask(self, request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Connection]:
        """Send a request and a file's bytes; return the header of the reply, and the connection that gives pixels."""
        self.connection.send_bytes(json.dumps(request).encode())
        self.connection.send_bytes(data)
        reply: dict[str, Any] = json.loads(self.connection.recv_bytes(_MAX_HEADER))
        return reply, self.connection

    def close(self) -> int:
        self.connection.close()
        self._process.kill()
        return self._process.wait()

    def wait(self) -> int:
        """Wait for the end of a process that has closed its socket; return its exit status."""
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
    """In a forked child process, forget the inherited decoder processes, which only the parent process may use."""
    global _idle, _lock
    for process in _idle:
        process.connection.close()
        process._process.returncode = 0  # Popen must not wait for a process that is not this process's child.
    _idle, _lock = [], threading.Lock()


os.register_at_fork(after_in_child=_forget_all)


def main() -> None:
    """Decode files received from a socket; ``sys.argv`` holds the socket's descriptor and the seconds per file."""
    connection, seconds = Connection(int(sys.argv[1])), float(sys.argv[2])
    # Ctrl-C signals the whole process group, but only the parent process must react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGALRM, signal.SIGIO, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    library_errors.capture_stderr()
    os.chdir("/")
    gc.enable()
    with contextlib.suppress(EOFError, OSError):  # These errors mean that the parent process has ended.
        while True:
            request, data = json.loads(connection.recv_bytes()), connection.recv_bytes()
            with _bounded(connection, seconds):
                reply, pixels = _answer(request, data)
            connection.send_bytes(json.dumps(reply).encode())
            if "error" not in reply:
                connection.send_bytes(pixels)


@contextlib.contextmanager
def _bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """Let the operating system end this process after ``seconds`` or at the parent's death, even within C code.

    SIGIO ends this process when the parent closes its end of the socket ``connection``; nothing else happens on the
    socket while the parent waits for an answer.
    """
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if connection.poll():  # The parent has closed the socket already, so SIGIO will not be sent.
            raise EOFError
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        fcntl.fcntl(connection, fcntl.F_SETFL, flags)


def _answer(request: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    limit_memory(request["max_pixels"])
    settings = EncodeSettings(max_pixels=request["max_pixels"], background=tuple(request["background"]))
    try:
        decoded = decode_here(data, settings=settings, name=request["name"])
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
