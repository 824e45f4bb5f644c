"""macOS as Python sees it, on Linux: put on PYTHONPATH as sitecustomize.py by ./scripts/platforms.

Names that macOS lacks are gone, its own names are there, and what behaves otherwise does so.
"""

import fcntl
import mmap
import multiprocessing
import multiprocessing.reduction
import os
import select
import time

LACKING = {
    os: "memfd_create sched_getaffinity sched_setaffinity posix_fadvise copy_file_range RWF_NOWAIT O_DIRECT splice",
    select: "epoll",
    mmap: "MAP_POPULATE",
}
for module, names in LACKING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

_fcntl = fcntl.fcntl
fcntl.F_FULLFSYNC = 51


def _fcntl_of_macos(descriptor, command, argument=0):
    return os.fsync(descriptor) if command == fcntl.F_FULLFSYNC else _fcntl(descriptor, command, argument)


class _Poll:
    """poll of xnu: without events, nothing is registered."""

    def __init__(self):
        self._poll = _poll()
        self._registered = False

    def register(self, descriptor, events=select.POLLIN | select.POLLPRI | select.POLLOUT):
        if events:
            self._registered = True
            self._poll.register(descriptor, events)

    def unregister(self, descriptor):
        self._poll.unregister(descriptor)

    def poll(self, timeout=None):
        if not self._registered:
            time.sleep(1e6 if timeout is None else timeout / 1000)
            return []
        return self._poll.poll(timeout)


fcntl.fcntl = _fcntl_of_macos
_poll, select.poll = select.poll, _Poll
multiprocessing.reduction.ACKNOWLEDGE = True
multiprocessing.set_start_method("spawn")
