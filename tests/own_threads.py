"""Names of picstore's threads."""

from __future__ import annotations

import gc
import threading


def our_threads() -> list[str]:
    """Names of picstore's threads in this process.

    A garbage collection in ``threading.enumerate``, which holds threading's lock, would close an iterator that is
    garbage and wait for its threads, which need that lock to end: for ever.
    """
    gc.disable()
    try:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("picstore-")]
    finally:
        gc.enable()
