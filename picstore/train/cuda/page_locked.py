"""Page-locked memory for copies to a GPU: each block in which batches lie is registered with CUDA once.

A GPU reads page-locked memory by itself. The loader reuses a handful of blocks. Copying each batch to other page-locked
memory took 5 µs an image, more than all of Python's work.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref

import torch

from picstore.arrays import U8
from picstore.train.buffers import Mapping, find_mapping

logger = logging.getLogger("picstore")

_PORTABLE = 1  # cudaHostRegisterPortable: locks the memory for all GPUs
_tried: weakref.WeakKeyDictionary[Mapping, bool] = weakref.WeakKeyDictionary()  # whether CUDA locked a mapping
_warned = threading.Event()


def lock_pages(array: U8, device: torch.device) -> bool:
    """Page-lock the mapped memory that holds an array until the memory is unmapped; later calls change nothing.

    Args:
        array: array of a batch, used by no other thread. Copies to the GPU must end before the array is freed.
        device: a GPU; or the CPU with Triton's interpreter, which can read any memory.

    Returns:
        Whether the memory is page-locked. Memory that is not from ``map_memory`` is not. CUDA's first refusal is
        logged.
    """
    if device.type != "cuda":
        return True
    mapping = find_mapping(array)
    if mapping is None:
        return False
    if (locked := _tried.get(mapping)) is None:
        problem = _register(mapping, device)
        if problem and not _warned.is_set():
            _warned.set()
            logger.warning(
                "CUDA cannot page-lock the memory of batches, which are copied to memory of its own: %s; "
                "loader.stats.copied counts them",
                problem,
            )
        _tried[mapping] = mapping.locked = locked = not problem
    return locked


def _register(mapping: Mapping, device: torch.device) -> str:
    """Page-lock mapped memory until the memory is unmapped; return CUDA's error message, or "" after success.

    A new thread calls CUDA, because torch would raise an error of the call again at the same thread's next launch.
    """
    problems = ["its thread ended"]

    def register() -> None:
        try:
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            with torch.cuda.device(device):
                code = cudart.cudaHostRegister(mapping.address, mapping.size, _PORTABLE)
            problems[:] = [cudart.cudaGetErrorString(code)] if int(code) else []
        except RuntimeError as error:
            problems[:] = [str(error)]

    thread = threading.Thread(target=register, name="picstore-register")
    thread.start()
    thread.join()
    if not problems:
        # An object's newest finalizer runs first, so memory is unlocked before the first finalizer unmaps it.
        weakref.finalize(mapping, _unregister, mapping.address, device, os.getpid()).atexit = False
    return problems[0] if problems else ""


def _unregister(address: int, device: torch.device, pid: int) -> None:
    """Unlock memory once its copies to the GPU have ended; do nothing in a fork, where CUDA does not work."""
    if pid != os.getpid():
        return
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        code = cudart.cudaHostUnregister(address)
    if int(code):
        logger.warning("CUDA cannot unlock the memory of a batch: %s", cudart.cudaGetErrorString(code))
