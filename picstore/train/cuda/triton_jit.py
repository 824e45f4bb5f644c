"""Triton, in the one place that imports it.

The kernels need no more than Triton 3.6, which torch 2.11 for CUDA brings. With ``TRITON_INTERPRET=1`` in the
environment before torch is imported they run on tensors of the CPU, op by op in NumPy: that is for tests.
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
    """A function that the CPU launches, compiled at its first launch; its integers pick no code."""
    return triton.jit(function, do_not_specialize=["phase"])


def device_function(function: Callable[..., Any]) -> Any:
    """A function that kernels call, and nobody else."""
    return triton.jit(function)
