"""Progress of a verb on stderr: a bar on a terminal, elsewhere a line a minute; ``--quiet`` turns both off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from picstore.cli.options import is_quiet
from picstore.cli.terminal import echo, echo_json

INTERVAL = 60.0  # seconds from one line to the next


def show_progress(verb: str) -> AbstractContextManager[Bar | Lines | Silence]:
    """Make the display of a verb that runs, as its options ``--quiet`` and ``--json`` and the terminal ask for."""
    if is_quiet():
        return nullcontext(Silence())
    if Console(stderr=True).is_interactive:
        return Bar(verb)
    return Lines(verb, as_json=click.get_current_context().params["as_json"], interval=INTERVAL)


class Silence:
    """Shows nothing."""

    def begin_stage(self, stage: str) -> None:
        pass

    def set_total(self, total: int, done: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass


class Bar:
    """Shows the stage, the number of items done and in total, the rate, and the time left."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} images/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(verb, total=None, rate="")

    def begin_stage(self, stage: str) -> None:
        self._progress.update(self._task, description=f"{self._verb}: {stage}")

    def set_total(self, total: int, done: int) -> None:
        self._progress.start()  # not before, as compiling kernels has a bar of its own
        self._progress.update(self._task, total=total, completed=done)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)
        speed = self._progress.tasks[0].speed
        self._progress.update(self._task, rate=f"{speed:,.0f}" if speed else "")

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Lines:
    """Prints a line when a stage begins, and one each interval while it lasts, from a thread of its own.

    Args:
        as_json: print JSON objects with the same facts.
        interval: seconds from one line to the next.
        clock: seconds, which never go back.
    """

    def __init__(
        self,
        verb: str,
        *,
        as_json: bool = False,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._verb, self._as_json, self._interval, self._clock = verb, as_json, interval, clock
        self._began = clock()
        self._lock = threading.Lock()  # of all that follows, as the thread prints
        self._stage = ""
        self._since = self._began  # of the stage
        self._done = self._earlier = 0  # of them done by an earlier run
        self._total: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def begin_stage(self, stage: str) -> None:
        with self._lock:
            self._stage, self._since = stage, self._clock()
            self._done = self._earlier = 0
            self._total = None
            self._print()

    def set_total(self, total: int, done: int) -> None:
        with self._lock:
            self._total, self._done, self._earlier, self._since = total, done, done, self._clock()

    def advance(self, count: int) -> None:
        with self._lock:
            self._done += count

    def facts(self) -> dict[str, Any]:
        """Collect a line's figures: the stage's counts and rate, the verb's seconds past and left; None if unknown."""
        now, made = self._clock(), self._done - self._earlier
        rate = made / (now - self._since) if made and now > self._since else None
        left = (self._total - self._done) / rate if rate and self._total is not None else None
        counts = {"done": self._done, "total": self._total} if self._total is not None else {}
        return {
            "verb": self._verb,
            "stage": self._stage,
            "done": None,
            "total": None,
            **counts,
            "rate": rate and round(rate, 1),
            "seconds": round(now - self._began, 1),
            "left": None if left is None else round(left, 1),
        }

    def _print(self) -> None:
        facts = self.facts()
        with suppress(OSError):  # who read the lines has gone, or the disk of the log is full
            if self._as_json:
                echo_json(facts, err=True)
            else:
                echo(_line(facts), err=True)

    def _tick(self) -> None:
        while not self._ended.wait(self._interval):
            with self._lock:
                self._print()

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _line(facts: dict[str, Any]) -> str:
    """Format as ``picstore convert: rows, 120,000 of 1,281,000 images, 812 images/s, 24 min left``."""
    parts = [facts["stage"]]
    if facts["total"] is not None:
        parts.append(f"{facts['done']:,} of {facts['total']:,} images")
        parts.append(f"{facts['rate']:,.0f} images/s" if facts["rate"] else "")
        parts.append(f"{_duration(facts['left'])} left" if facts["left"] is not None else "")
    elif facts["seconds"] >= 1:
        parts.append(f"after {_duration(facts['seconds'])}")
    return f"picstore {facts['verb']}: " + ", ".join(filter(None, parts))


def _duration(seconds: float) -> str:
    """Format as ``45 s``, ``24 min`` or ``3 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
