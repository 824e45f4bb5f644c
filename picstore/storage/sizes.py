"""Parsing of sizes such as ``8MiB``."""

from __future__ import annotations

import re

from picstore.errors import UsageError

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_size(size: int | str) -> int:
    """Convert ``8MiB``, ``512KiB``, ``50GiB`` or a plain number to bytes; raise UsageError for any other form."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*([A-Za-z]*)\s*", str(size))
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(f"{size!r} is not a size; write 8MiB, 512KiB, 50GiB or a number of bytes")
    return int(match[1]) * _UNITS[match[2].upper()]
