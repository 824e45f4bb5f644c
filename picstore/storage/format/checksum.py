"""CRC-32C (Castagnoli), the checksum of everything at rest (RFC 3720, appendix B.4, has test values)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from picstore.arrays import U32, Table
from picstore.storage.location.base import Buffer

ExtendCrc: TypeAlias = Callable[[Buffer, int], int]  # from bytes and the CRC of the bytes before them


def portable_crc32c() -> ExtendCrc:
    """Load crcmod's implementation: 30 times slower than google-crc32c, but built from source anywhere."""
    import crcmod.predefined

    compute = crcmod.predefined.mkPredefinedCrcFun("crc-32c")
    return lambda data, before: int(compute(data, before))


def _fastest() -> ExtendCrc:
    try:
        import google_crc32c
    except ImportError:
        return portable_crc32c()
    if google_crc32c.implementation != "c":
        return portable_crc32c()
    # Its argument parser refuses a memoryview but takes an array over the same bytes, without a copy.
    extend = google_crc32c.extend
    return lambda data, before: int(extend(before, np.frombuffer(data, dtype=np.uint8)))


_compute = _fastest()


def crc32c(data: Buffer) -> int:
    """CRC-32C of bytes."""
    return _compute(data, 0)


def crc32c_of_buffers(buffers: Iterable[Buffer]) -> int:
    """CRC-32C of several buffers, one after the other."""
    value = 0
    for buffer in buffers:
        value = _compute(buffer, value)
    return value


def masked(crc: int) -> int:
    """Mask a CRC that is stored within bytes that have a CRC themselves: rotate it and add a constant.

    Bytes followed by their own CRC all have the same CRC. Every table whose entries end in plain CRCs would thus have
    the same CRC. The formula is that of the Snappy framing format, section 3.
    """
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def entry_crcs(table: Table) -> U32:
    """Masked CRC-32C of each entry of a table without its last four bytes, in the table's shape."""
    size = table.dtype.itemsize
    raw = memoryview(table.tobytes())
    crcs = [masked(crc32c(raw[k : k + size - 4])) for k in range(0, len(raw), size)]
    return np.array(crcs, dtype=np.uint32).reshape(table.shape)
