"""Processes that a test has started."""

from __future__ import annotations

import os
from pathlib import Path


def children(of: int | None = None) -> list[int]:
    """Processes that this one, or another, has started and that still run.

    Those of an earlier test's garbage may end at any time.
    """
    parent, found = os.getpid() if of is None else of, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def descendants(of: int) -> list[int]:
    """Processes that another has started, those that these have started, and so on."""
    direct = children(of)
    return direct + [each for child in direct for each in descendants(child)]


def runs(process: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
