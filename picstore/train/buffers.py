"""Memory that is used again: for containers, and for batches once their consumer has let go of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from picstore.arrays import U8

_GRAIN = 1 << 16  # bytes; containers differ by a few images, so that most blocks fit most of them


def private(size: int) -> U8:
    """Memory of this process, uint8 (size,)."""
    return np.empty(size, dtype=np.uint8)


class Blocks:
    """Memory that is taken again as soon as nothing refers to what was in it.

    Left to malloc, the memory that several threads take and give back in turn grows to half as much again as what is
    in use (93 MiB for 64), and fresh pages for each container make reading six times slower than its copy.

    Args:
        keep: how many blocks to keep that nobody uses.
        allocate: makes a block of so many bytes.
    """

    def __init__(self, keep: int, *, allocate: Callable[[int], U8] = private) -> None:
        self._keep = keep
        self._allocate = allocate
        self._free: list[U8] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Memory of ``size`` bytes, of any content."""
        with self._lock:
            fitting = [k for k, block in enumerate(self._free) if len(block) >= size]
            if fitting:
                block = self._free.pop(min(fitting, key=lambda k: len(self._free[k])))
            else:
                if self._free:
                    self._free.pop()  # too small: it would only add to what is held
                block = self._allocate(-(-size // _GRAIN) * _GRAIN)
        # All views of this array keep it alive; when the last one goes, so does the array, and the block is free.
        lent = block[:size]
        weakref.finalize(lent, self._give_back, block).atexit = False
        return lent.data

    def _give_back(self, block: U8) -> None:
        # Without the lock: a finaliser may run in the thread that holds it.
        if len(self._free) < self._keep:
            self._free.append(block)


KEPT_BATCHES = 5  # those ahead, and two that the consumer has


@dataclass(frozen=True, slots=True)
class Memory:
    """What a loader's epochs share: blocks for containers, and for the images of batches."""

    containers: Blocks = field(default_factory=lambda: Blocks(keep=1 << 20))  # as many as the budget allows
    batches: Blocks = field(default_factory=lambda: Blocks(keep=KEPT_BATCHES))


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
