"""Restart segments: the parts of a scan that decode by themselves (ITU-T T.81, B.1.1.5 and E.1.4)."""

from __future__ import annotations

import numpy as np

from picstore.arrays import I64
from picstore.errors import ImageError
from picstore.jpeg.markers import EOI, RST0, RST7, Header


def find_restart_segments(jpeg: bytes | memoryview, header: Header) -> tuple[I64, I64]:
    """Find where every restart segment of the first scan begins and ends, markers not included.

    The stream, of which ``header`` is the header, has one interleaved scan. The results are int64 (segments,), byte
    offsets in the stream; without restart markers there is one segment.

    Raises:
        ImageError: the restart markers contradict the headers, or EOI is missing.
    """
    data = np.frombuffer(jpeg, dtype=np.uint8)[header.length :]
    # In entropy-coded data a 0xFF byte is followed by 0x00 (stuffing), by 0xFF (fill) or by a marker (B.1.1.5).
    offsets = np.flatnonzero(data[:-1] == 0xFF)
    codes = data[offsets + 1]
    is_marker = (codes != 0x00) & (codes != 0xFF)
    offsets, codes = offsets[is_marker], codes[is_marker]
    is_end = np.flatnonzero((codes < RST0) | (codes > RST7))
    if len(is_end) == 0 or codes[is_end[0]] != EOI:
        raise ImageError("the scan does not end in EOI: truncated, or it has more than one scan")
    restarts = is_end[0]
    columns, rows = header.mcus
    interval = header.restart_interval or columns * rows
    expected = -(-columns * rows // interval) - 1
    if restarts != expected:
        raise ImageError(f"{restarts} restart markers where the headers announce {expected}")
    if (codes[:restarts] != RST0 + np.arange(restarts) % 8).any():
        raise ImageError("restart markers are out of order")
    ends = offsets[: restarts + 1] + header.length
    starts = np.concatenate(([header.length], ends[:-1] + 2))
    return starts.astype(np.int64), ends.astype(np.int64)
