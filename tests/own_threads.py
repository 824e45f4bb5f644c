"""Names of picstore's threads, and waiting for their end."""

from __future__ import annotations

import gc
import threading
import time


def our_threads() -> list[str]:
    """Names of picstore's threads in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("picstore-")]


def threads_left() -> list[str]:
    """Names of picstore's threads, once garbage is collected and closed."""
    if our_threads():
        gc.collect()  # an iterator in a cycle closes late, in another thread
    deadline = time.monotonic() + 60
    while (names := our_threads()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return names
