"""Threads of the viewer, and work that the page starts in one, polls and may cancel."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from picstore.errors import PicstoreError, UsageError

IDLE, RUNNING, DONE, CANCELLED, FAILED = "idle", "running", "done", "cancelled", "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """Progress of background work.

    Attributes:
        state: one of IDLE, RUNNING, DONE, CANCELLED and FAILED.
        total: number of records to process.
        done: number of records processed.
        problem: reason why the work failed, or an empty string.
    """

    state: str = IDLE
    total: int = 0
    done: int = 0
    problem: str = ""


R = TypeVar("R", bound=Report)

_EXIT_SECONDS = 10  # longest wait for a thread when the interpreter ends
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
ending = threading.Event()  # set when the interpreter ends; long work then stops


def start_thread(run: Callable[[], object]) -> None:
    """Call a function in a daemon thread, and make the interpreter's exit wait for the thread.

    Without the wait, Python would end the thread within C++ code such as LLVM, which aborts the process.
    """
    thread = threading.Thread(target=_run_until_exit, args=(run,), daemon=True)
    _threads.add(thread)
    thread.start()


def _run_until_exit(run: Callable[[], object]) -> None:
    try:
        run()
    except RuntimeError:
        # Once the main thread has ended, executors take no work and threads cannot start; nobody needs the work then.
        if threading.main_thread().is_alive():
            raise


@atexit.register
def _end_threads() -> None:
    ending.set()
    for thread in list(_threads):
        thread.join(_EXIT_SECONDS)


class _Cancelled(PicstoreError):
    """Error that :meth:`Background.advance` raises in cancelled work, which ends the work and its processes."""


class Background(Generic[R]):
    """Runner of work in a background thread, with the work's report. Threads may share this object.

    Args:
        name: name of the work in the error message when it is started while it runs.
        idle: report before the work is first started.
    """

    def __init__(self, name: str, idle: R) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._report = idle
        self._cancel = threading.Event()

    @property
    def report(self) -> R:
        """Most recent report on the work's progress."""
        with self._lock:
            return self._report

    def begin(self, report: R, work: Callable[[], dict[str, Any]]) -> R:
        """Run ``work`` in a thread, and return the first report; ``work`` returns the final report's fields by name.

        Raise UsageError if work is running.
        """
        with self._lock:
            if self._report.state == RUNNING:
                raise UsageError(f"a {self._name} runs already; wait for its end, or use Cancel before another one")
            self._report = replace(report, state=RUNNING)
            self._cancel.clear()
        start_thread(lambda: self._run(work))
        return self.report

    def cancel(self) -> R:
        """Ask running work to end, which it does when it next reports progress; return the present report."""
        self._cancel.set()
        return self.report

    def begin_stage(self, stage: str) -> None:
        """Do nothing; the work calls this when a stage begins, but the page does not show stages."""

    def set_total(self, total: int, done: int) -> None:
        """Set the number of records to process and the number already processed; called by the work."""
        self._set(total=total, done=done)

    def advance(self, count: int) -> None:
        """Add to the number of processed records, or end the work if it was cancelled; called by the work."""
        if self._cancel.is_set() or ending.is_set():
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
