"""The cores that this process may use: as many threads, processes and compilers work by default."""

from __future__ import annotations

import os


def count_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
