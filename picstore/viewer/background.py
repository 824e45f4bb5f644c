"""Work that a page starts and polls: one run at a time, in the background, with its progress; it can be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from picstore.errors import PicstoreError, UsageError

IDLE, RUNNING, DONE, CANCELLED, FAILED = "idle", "running", "done", "cancelled", "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """How far the work is.

    Attributes:
        total, done: records.
        problem: why it failed.
    """

    state: str = IDLE
    total: int = 0
    done: int = 0
    problem: str = ""


R = TypeVar("R", bound=Report)


class _Cancelled(PicstoreError):
    """Ends the processes of the work."""


class Background(Generic[R]):
    """Work with a report; threads may share it. It is the progress that the work tells of itself.

    Args:
        name: of the work, for the message of a second start.
        idle: the report before the first start.
    """

    def __init__(self, name: str, idle: R) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._report = idle
        self._cancel = threading.Event()

    @property
    def report(self) -> R:
        """Its state now."""
        with self._lock:
            return self._report

    def begin(self, report: R, work: Callable[[], dict[str, Any]]) -> None:
        """Run ``work`` in a thread; it returns the fields of the last report. UsageError while another one runs."""
        with self._lock:
            if self._report.state == RUNNING:
                raise UsageError(f"a {self._name} runs already; wait for its end, or use Cancel before another one")
            self._report = replace(report, state=RUNNING)
            self._cancel.clear()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def cancel(self) -> None:
        """Make it end within a moment; nothing happens where none runs."""
        self._cancel.set()

    def begin_stage(self, stage: str) -> None:
        """Do nothing; called by the work."""

    def set_total(self, total: int, done: int) -> None:
        """Note the number of records; called by the work."""
        self._set(total=total, done=done)

    def advance(self, count: int) -> None:
        """Count records; called by the work."""
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
