"""Capture of stderr in worker processes: messages of C libraries about damaged images, for the ledger's reasons.

libtiff and libjpeg report damage on stderr, up to one line for each row of pixels. Only processes of the engine capture
it; a user's own process keeps its stderr.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import warnings

_MAX_CHARACTERS = 100

_captured: int | None = None  # the read end of the pipe


def capture_stderr() -> None:
    """Redirect file descriptor 2 of this process into a pipe; call once.

    Nobody has to empty the pipe: it holds 64 KiB, and the rest is dropped. Python's tracebacks and
    faulthandler's messages still go to the stderr of before.
    """
    global _captured
    _captured, write_end = os.pipe()
    os.set_blocking(_captured, False)
    os.set_blocking(write_end, False)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    os.dup2(write_end, 2)
    os.close(write_end)
    if faulthandler.is_enabled():
        faulthandler.enable(sys.stderr)
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # without a handler, its warnings go to stderr
    # Pillow warns of odd EXIF and of tags that it does not know.
    warnings.filterwarnings("ignore", module=r"PIL\.")


def is_captured() -> bool:
    """Whether this process captures stderr: it is one of picstore's own, and the user's program is another."""
    return _captured is not None


def take_first_line() -> str:
    """Empty the pipe and return its first line as at most 100 printable characters, "" if nothing was printed."""
    if _captured is None:
        return ""
    try:
        printed = os.read(_captured, 1 << 16)
    except BlockingIOError:
        return ""
    line = printed.partition(b"\n")[0].decode("ascii", "backslashreplace").strip()
    return "".join(each if each.isprintable() else "?" for each in line)[:_MAX_CHARACTERS]
