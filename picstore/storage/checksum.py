"""CRC-32C (Castagnoli), the checksum of everything at rest (RFC 3720, appendix B.4, has test values)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Buffer: TypeAlias = bytes | bytearray | memoryview


def portable_crc32c() -> Callable[[Buffer], int]:
    """crcmod's implementation: 30 times slower than google-crc32c, but built from source anywhere."""
    import crcmod.predefined

    compute = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    return lambda data: int(compute(data))


def _fastest() -> Callable[[Buffer], int]:
    try:
        import google_crc32c
    except ImportError:
        return portable_crc32c()
    if google_crc32c.implementation != "c":
        return portable_crc32c()
    # Its argument parser refuses a memoryview but takes an array over the same bytes, without a copy.
    value = google_crc32c.value
    return lambda data: int(value(np.frombuffer(data, dtype=np.uint8)))


crc32c: Callable[[Buffer], int] = _fastest()
