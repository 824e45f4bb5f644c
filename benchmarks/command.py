"""picstore's command, timed in a process that has imported everything and started its fork server."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.child import call


def command_seconds(arguments: Sequence[object], *, warmup: Sequence[object] = ()) -> float:
    """Seconds of ``picstore ARGUMENTS`` after ``picstore WARMUP`` in the same new process."""
    return float(call("benchmarks.command:time_command", list(map(str, arguments)), list(map(str, warmup))))


def time_command(arguments: list[str], warmup: list[str]) -> float:
    """Seconds of a command in this process."""
    if warmup:
        _run(warmup)
    start = time.perf_counter()
    _run(arguments)
    return time.perf_counter() - start


def _run(arguments: list[str]) -> None:
    from picstore.cli import main

    sys.argv = ["picstore", *arguments]
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise RuntimeError(f"picstore {' '.join(arguments)} ended with {done.code}") from None
