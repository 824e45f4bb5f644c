"""Errors of image libraries: exceptions become ImageErrors, whose reasons include lines that libraries print on stderr.

libtiff and libjpeg report damage on stderr, up to one line for each row of pixels. Only worker processes capture
stderr; a user's own process keeps it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import warnings
from collections.abc import Iterator

from picstore.errors import ImageError, MissingDependency

_MAX_CHARACTERS = 100

# Descriptor of the read end of the pipe to which stderr is redirected; None if stderr is not captured.
_captured: int | None = None


def capture_stderr() -> None:
    """Redirect this process's file descriptor 2 into a pipe; to be called once.

    The pipe need not be emptied: it holds 64 KiB, and further writes fail without blocking. Python's tracebacks and
    faulthandler's messages still go to the original stderr.
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
    # Without a handler, Python would print Pillow's log messages on stderr.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    # Ignore Pillow's warnings, which are about unusual EXIF and unknown tags, not about damaged pixels.
    warnings.filterwarnings("ignore", module=r"PIL\.")


def is_captured() -> bool:
    """Return whether this process captures stderr, and so is a process that picstore started, not the user's."""
    return _captured is not None


def take_first_line() -> str:
    """Empty the stderr pipe; return the first line, cut to 100 printable characters, or "" if nothing was printed."""
    if _captured is None:
        return ""
    try:
        printed = os.read(_captured, 1 << 16)
    except BlockingIOError:
        return ""
    line = printed.partition(b"\n")[0].decode("ascii", "backslashreplace").strip()
    return "".join(each if each.isprintable() else "?" for each in line)[:_MAX_CHARACTERS]


@contextlib.contextmanager
def foreign_errors(context: str) -> Iterator[None]:
    """Translate any exception of an image library into an ImageError that states a short reason and the cause.

    The reason includes what libtiff prints on stderr, because Pillow says only "decoder error -2". All exceptions are
    caught, because damaged files raise many types: OSError, SyntaxError, struct.error, KeyError, ….
    """
    try:
        yield
    except (ImageError, MissingDependency):
        raise
    except MemoryError as error:
        raise ImageError(f"{context}: not enough memory") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        if printed := take_first_line():
            reason = f"{reason} ({printed.rstrip('.')})"
        if isinstance(error, EOFError) or "truncated" in reason.lower() or "not enough" in reason.lower():
            context = context.replace("damaged ", "truncated ", 1)
        raise ImageError(f"{context}: {reason}") from error
