"""Arrays between inaccessible pages: one byte read or written outside kills the process.

numba's bounds check does not see loads and stores by address; the processor does.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Pages:
    """Memory between two inaccessible pages; freed with the last array over it."""

    def __init__(self, size: int, *, flush_left: bool) -> None:
        usable = -(-max(size, 1) // _PAGE) * _PAGE
        self._size = usable + 2 * _PAGE
        self._at = _libc.mmap(None, self._size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if self._at in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"mmap of {self._size} bytes failed")
        if _libc.mprotect(self._at + _PAGE, usable, mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect")
        address = self._at + _PAGE + (0 if flush_left else usable - size)
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        _libc.munmap(self._at, self._size)


class GuardedNumpy:
    """Replacement of a module's ``np`` whose new arrays lie between guard pages.

    Args:
        flush_left: whether arrays touch the page before them instead of the one after.
    """

    def __init__(self, *, flush_left: bool = False) -> None:
        self.flush_left = flush_left

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any = float) -> Any:
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        return np.asarray(_Pages(size, flush_left=self.flush_left)).view(kind).reshape(shape)

    def empty(self, shape: Any, dtype: Any = float) -> Any:
        made = self.zeros(shape, dtype)
        made.view(np.uint8).fill(0xA5)  # nothing may rely on zeros
        return made

    def array(self, values: Any, dtype: Any = None) -> Any:
        plain = np.array(values, dtype)
        made = self.zeros(plain.shape, plain.dtype)
        made[...] = plain
        return made

    def ascontiguousarray(self, values: Any, dtype: Any = None) -> Any:
        return self.array(values, dtype)

    def stream(self, data: bytes) -> memoryview:
        """Copy bytes to a read-only array."""
        made = self.array(np.frombuffer(data, np.uint8))
        made.flags.writeable = False
        return memoryview(made)
