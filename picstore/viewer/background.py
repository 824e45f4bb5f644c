"""Work in a thread that a page starts, polls and may cancel, one run at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from picstore.errors import PicstoreError, UsageError

IDLE, RUNNING, DONE, CANCELLED, FAILED = "idle", "running", "done", "cancelled", "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """Progress of work in the background.

    Attributes:
        total, done: numbers of records.
        problem: the reason why the work failed.
    """

    state: str = IDLE
    total: int = 0
    done: int = 0
    problem: str = ""


R = TypeVar("R", bound=Report)


class _Cancelled(PicstoreError):
    """The page has cancelled the work; this error ends the work's processes."""


class Background(Generic[R]):
    """Work with a report; the work gets this object as ``progress``, and threads may share it.

    Args:
        name: name of the work, for the message if the work is started twice.
        idle: report before the first start.
    """

    def __init__(self, name: str, idle: R) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._report = idle
        self._cancel = threading.Event()

    @property
    def report(self) -> R:
        """Current report."""
        with self._lock:
            return self._report

    def begin(self, report: R, work: Callable[[], dict[str, Any]]) -> None:
        """Run ``work``, which returns fields of the final report, in a thread; raise UsageError if work is running."""
        with self._lock:
            if self._report.state == RUNNING:
                raise UsageError(f"a {self._name} runs already; wait for its end, or use Cancel before another one")
            self._report = replace(report, state=RUNNING)
            self._cancel.clear()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def cancel(self) -> None:
        """End the work soon, if it is running."""
        self._cancel.set()

    def begin_stage(self, stage: str) -> None:
        """Do nothing; the work calls this when a stage begins."""

    def set_total(self, total: int, done: int) -> None:
        """Set the number of all records, and of those that are done; the work calls this."""
        self._set(total=total, done=done)

    def advance(self, count: int) -> None:
        """Count records that are done, or end the work if it is cancelled; the work calls this."""
        if self._cancel.is_set():
            raise _Cancelled("cancelled")
        self._set(done=self.report.done + count)

    def _run(self, work: Callable[[], dict[str, Any]]) -> None:
        try:
            found = work()
        except _Cancelled:
            self._set(state=CANCELLED)
        except (PicstoreError, OSError) as error:
            self._set(state=FAILED, problem=str(error))
        else:
            self._set(state=DONE, **found)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._report = replace(self._report, **changes)
