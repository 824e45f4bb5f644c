"""Compilation of kernels by Triton, which no other module imports.

The kernels need Triton 3.6, which torch 2.11 for CUDA brings. If ``TRITON_INTERPRET=1`` is set before torch is
imported, they run on tensors of the CPU, op by op in NumPy, for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from picstore.errors import MissingDependency

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise MissingDependency("augmenting on the GPU needs Triton, which is not installed: pip install triton") from error

INTERPRETED = bool(triton.knobs.runtime.interpret)

__all__ = ["INTERPRETED", "device_function", "kernel", "tl"]


def kernel(function: Callable[..., Any]) -> Any:
    """Decorator for functions that the host launches, compiled at the first launch; no integer specialises the code."""
    return triton.jit(function, do_not_specialize=["phase"])


def device_function(function: Callable[..., Any]) -> Any:
    """Decorator for functions that only kernels call."""
    return triton.jit(function)
