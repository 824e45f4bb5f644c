"""Conditions of the page, evaluated while a client waits for them and for a limited time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass

from picstore.arrays import Bools
from picstore.errors import UsageError
from picstore.storage.conditions import Condition
from picstore.storage.record_table import RecordTable

SECONDS = 30.0  # a million records take less than 1
_POLL = 0.05  # seconds; DuckDB forgets an interruption that comes before the evaluation
_GRACE = 1.0  # seconds that DuckDB has to end after an interruption
_running = threading.BoundedSemaphore(4)  # evaluations, endless ones included


class Interrupted(UsageError):
    """The evaluation was given up, as its client has gone."""


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long an evaluation is waited for: until a client has gone, or a time by the monotonic clock."""

    gone: threading.Event
    limit: float
    end: float

    def over(self) -> UsageError | None:
        """Why it is given up; None while it is waited for."""
        if self.gone.is_set():
            return Interrupted("the condition was given up, as nobody waits for it")
        if time.monotonic() >= self.end:
            return UsageError(f"the condition took more than {self.limit:g} s and was ended; write a simpler one")
        return None


def evaluate(table: RecordTable, text: str, *, gone: threading.Event, seconds: float | None = None) -> Bools:
    """Mark the records for which a condition holds, as ``table.where`` does.

    Args:
        gone: set when nobody waits for the result.
        seconds: limit of time; by default 30.

    Raises:
        Interrupted: the client has gone; DuckDB is interrupted.
        UsageError: the time is over, DuckDB is interrupted, or ``table.where`` raises it.
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
    """Interrupt DuckDB until it ends; an evaluation that does not is left to its thread."""
    last = time.monotonic() + _GRACE
    while not result.done() and time.monotonic() < last:
        condition.interrupt()
        wait([result], _POLL)
