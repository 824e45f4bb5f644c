"""A check of the main script, which workers that are not forked run again."""

from __future__ import annotations

import sys
from multiprocessing.context import get_spawning_popen
from pathlib import Path

from picstore.errors import UsageError


def check_main_guard() -> None:
    """Refuse to be sent to a process that would start others while it imports the main script.

    From Python 3.14 on, and on macOS under any, workers of a DataLoader are not forked but import the main script. One
    without a guard starts workers again there, which Python refuses; here all that arrives is a lost connection.

    Raises:
        UsageError: workers are being started, and nothing in the script asks for the name that it runs under.
    """
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    package = spec is not None and spec.name.endswith("__main__")  # which multiprocessing does not import
    if get_spawning_popen() is None or path is None or package or sys.flags.interactive:
        return
    try:
        text = Path(path).read_bytes()
    except OSError:  # it has moved, or lies in an archive
        return
    if b"__name__" not in text and b"parent_process" not in text:
        raise UsageError(f'workers import {path}, which starts them: put what it runs under if __name__ == "__main__":')
