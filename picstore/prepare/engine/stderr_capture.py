"""What the C libraries that decode images print on stderr: kept off the terminal, and at hand for an image's reason.

libtiff and libjpeg report damage there, one line for each row of pixels if need be. Only processes that the engine
owns are treated so; a user's own process keeps its stderr.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys

_LONGEST = 100  # characters of a message

_heard: int | None = None  # the end of the pipe that is read from


def divert() -> None:
    """From now on what this process writes to file descriptor 2 goes into a pipe; to be called once.

    Nobody has to empty the pipe: it takes 64 KiB, and what does not fit is dropped. Python's own messages, tracebacks
    and those of faulthandler, still go where stderr went before.
    """
    global _heard
    _heard, theirs = os.pipe()
    os.set_blocking(_heard, False)
    os.set_blocking(theirs, False)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    os.dup2(theirs, 2)
    os.close(theirs)
    if faulthandler.is_enabled():
        faulthandler.enable(sys.stderr)
    logging.getLogger("PIL").addHandler(logging.NullHandler())  # else what it logs of damage goes to stderr


def take() -> str:
    """The first line that was printed since the last call, as at most 100 printable characters; "" for none."""
    if _heard is None:
        return ""
    try:
        printed = os.read(_heard, 1 << 16)
    except BlockingIOError:
        return ""
    line = printed.partition(b"\n")[0].decode("ascii", "backslashreplace").strip()
    return "".join(each if each.isprintable() else "?" for each in line)[:_LONGEST]
