"""Compilation of kernels by Triton, which no other module imports.

The kernels need Triton 3.6, which torch 2.11 for CUDA brings. If ``TRITON_INTERPRET=1`` is set before torch is
imported, the kernels run on tensors of the CPU, op by op in NumPy, for tests.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

from picstore.errors import MissingDependency

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise MissingDependency("augmenting on the GPU needs Triton, which is not installed: pip install triton") from error

INTERPRETED = bool(triton.knobs.runtime.interpret)

__all__ = ["INTERPRETED", "device_function", "kernel", "launching", "tl"]

_LAUNCHING = threading.Lock()
_KERNELS: list[Any] = []  # all kernels that the host launches


@contextlib.contextmanager
def launching() -> Iterator[None]:
    """Return a context for launching kernels, for one thread at a time: two threads could compile the same kernel.

    Raises:
        MissingDependency: Triton finds no C compiler, which it needs to build launchers.
    """
    try:
        with _LAUNCHING:
            yield
            _skip_global_checks()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        failed = isinstance(error, subprocess.CalledProcessError) and "-shared" in (error.cmd or ())
        if failed or "C compiler" in str(error):
            raise MissingDependency(
                f"Triton compiles what launches its kernels once on a machine, with a C compiler and the headers of C "
                f"and Python: apt install gcc libc6-dev python3-dev, or set CC ({error})"
            ) from error
        raise


def _skip_global_checks() -> None:
    """Stop Triton from comparing the global constants of compiled kernels at each launch, because they never change.

    The comparisons for a batch's launches take 165 µs, of which 88 µs for the 117 constants of ``run_phase``.
    """
    for each in _KERNELS:
        if getattr(each, "used_global_vals", None):  # Launches compare these constants.
            each.used_global_vals = {}


def kernel(function: Callable[..., Any]) -> Any:
    """Return a kernel that the host launches; another ``phase``, ``count`` or ``image_count`` does not recompile it."""
    made = triton.jit(function, do_not_specialize=["phase", "count", "image_count"])
    _KERNELS.append(made)
    return made


def device_function(function: Callable[..., Any]) -> Any:
    """Return a Triton function that only kernels call."""
    return triton.jit(function)
