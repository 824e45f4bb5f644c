"""Files that stay in the system's memory, in the test session and the processes of its engine."""

from __future__ import annotations

import os


def leave_unsynced() -> None:
    """Make ``os.fsync`` do nothing: it takes a disk 3 ms, and a dataset calls it 20 times.

    Only a loss of power shows the difference; tests/storage/location/test_location.py shows that files are synced.
    """

    def leave(fd: object) -> None:
        pass

    os.fsync = leave
