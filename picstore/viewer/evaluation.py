"""Evaluation of the page's conditions in SQL, given up if the client goes or the time is over."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass

from picstore.arrays import Bools
from picstore.errors import UsageError
from picstore.storage.conditions import Condition
from picstore.storage.record_table import RecordTable

# Seconds that an evaluation may take; a million records take less than 1.
SECONDS = 30.0
_POLL = 0.05  # seconds between looks at the client
# DuckDB forgets an interruption that comes before its evaluation, so it is interrupted again for this many seconds.
_GRACE = 1.0
# At most four evaluations run at a time, endless ones included.
_running = threading.BoundedSemaphore(4)


class Interrupted(UsageError):
    """The evaluation was given up because its client has gone."""


@dataclass(frozen=True, slots=True)
class _Patience:
    """Limits of an evaluation: the client's patience, and an end by the monotonic clock after ``limit`` seconds."""

    gone: threading.Event
    limit: float
    end: float

    def over(self) -> UsageError | None:
        """Return why the evaluation is given up, if it is."""
        if self.gone.is_set():
            return Interrupted("the condition was given up because nobody waits for it")
        if time.monotonic() >= self.end:
            return UsageError(f"the condition took more than {self.limit:g} s and was ended; write a simpler one")
        return None


def evaluate(table: RecordTable, text: str, *, gone: threading.Event, seconds: float | None = None) -> Bools:
    """Mark the records for which a condition holds, as ``table.where`` does.

    Args:
        gone: set when nobody waits for the result.
        seconds: most seconds that it may take; 30 by default.

    Raises:
        Interrupted: the client has gone.
        UsageError: the time is over, or ``table.where`` raises it.
        MissingDependency: ``table.where`` raises it.
    """
    limit = SECONDS if seconds is None else seconds
    patience = _Patience(gone, limit, time.monotonic() + limit)
    while not _running.acquire(timeout=_POLL):
        if over := patience.over():
            raise over
    condition, result = _start(table, text)
    while not wait([result], _POLL).done:
        if over := patience.over():
            _interrupt(condition, result)
            raise over
    return result.result()


def _start(table: RecordTable, text: str) -> tuple[Condition, Future[Bools]]:
    """Begin an evaluation in a thread of its own."""
    result: Future[Bools] = Future()

    def run() -> None:
        try:
            result.set_result(table.where(condition))
        except BaseException as error:
            result.set_exception(error)
        finally:
            _running.release()

    try:
        condition = table.condition(text)
        threading.Thread(target=run, daemon=True).start()
    except BaseException:
        _running.release()
        raise
    return condition, result


def _interrupt(condition: Condition, result: Future[Bools]) -> None:
    """Interrupt DuckDB until the evaluation ends; after a second it is left to its thread."""
    last = time.monotonic() + _GRACE
    while not result.done() and time.monotonic() < last:
        condition.interrupt()
        wait([result], _POLL)
