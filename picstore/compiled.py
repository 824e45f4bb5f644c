"""Kernels: functions that numba compiles to machine code, which run without the GIL. The one place that knows how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, and keep the machine code on disk where there is a place for it."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(nogil=True)(function)
