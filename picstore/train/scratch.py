"""Memory that a thread works in: fresh pages for every image would cost a fifth of the decoding."""

from __future__ import annotations

import threading

import numpy as np

from picstore.arrays import U8

_LEAST = 1 << 20  # bytes


class Scratch(threading.local):
    """One buffer for each thread, which grows and is used again."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)

    def take(self, size: int) -> U8:
        """uint8 (m,) with m ≥ size, valid until this thread takes again."""
        if len(self._buffer) < size or not len(self._buffer):
            self._buffer = np.empty(max(size, _LEAST), dtype=np.uint8)
        return self._buffer


CUTS, PIXELS, PLAIN = Scratch(), Scratch(), Scratch()  # streams; decoded images; resampled ones before their colour
