"""Display of a verb's progress: a bar on a terminal, else a line a minute on stderr, or function calls, or nothing.

A verb reports its progress to a :class:`Progress`, worker processes report theirs to a :data:`ProgressCallback`. Worker
processes import this module, so the library rich is imported only to draw a bar.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol, TypeAlias, runtime_checkable

from picstore.display.terminal import ascii_json, say
from picstore.errors import UsageError, counted
from picstore.results import ProgressReport

INTERVAL = 60.0  # Seconds between two lines of progress.
CALLBACK_INTERVAL = 0.1  # Smallest number of seconds between two calls of the ``progress`` function within a stage.

# Function to call with the number of items that were completed since the previous call.
ProgressCallback: TypeAlias = Callable[[int], None]


class Progress(Protocol):
    """Receiver of a verb's reports: which stage has begun, and how many of the stage's items are done."""

    def begin_stage(self, stage: str) -> None:
        """Report that a stage has begun, such as ``"rows"``; :meth:`set_total` follows if the stage counts items."""

    def set_total(self, total: int, done: int) -> None:
        """Report the number of the current stage's items, ``total``, and how many of them an earlier run has done."""

    def advance(self, count: int) -> None:
        """Report that ``count`` more items of the current stage are done."""


@runtime_checkable
class Display(Progress, Protocol):
    """Display of a verb's progress, and of remarks on the input of the verb."""

    def remark(self, text: str) -> None:
        """Show a remark on the verb's input; a remark does not stop the verb."""


def begin_stage(progress: Progress | None, stage: str, total: int | None = None, done: int = 0) -> None:
    """Report that a stage has begun, and its number of items if ``total`` is given; do nothing without ``progress``."""
    if progress is not None:
        progress.begin_stage(stage)
        if total is not None:
            progress.set_total(total, done)


def progress_callback(progress: Progress | None) -> ProgressCallback:
    """Return ``progress.advance``, or a callback that does nothing if ``progress`` is None."""
    return progress.advance if progress is not None else lambda _: None


ProgressOption: TypeAlias = bool | Callable[[ProgressReport], object] | Display


def open_display(verb: str, progress: ProgressOption, *, as_json: bool = False) -> AbstractContextManager[Display]:
    """Open the display that the ``progress`` argument of a verb requests.

    Args:
        progress: True for a bar or lines, False for no display, a function to call with reports, or a display.
        as_json: whether to print each line as a JSON object.
    """
    if progress is True:
        return Bar(verb) if has_bar() else Lines(verb, as_json=as_json)
    if progress is False:
        return nullcontext(Silence())
    if isinstance(progress, Display):
        return nullcontext(progress)
    if not callable(progress):
        raise UsageError(f"progress is {progress!r}; give True, False, or a function that takes a report")
    return nullcontext(Callback(verb, progress))


def has_bar() -> bool:
    """Return whether a progress bar can be drawn: stderr is a terminal, or Python runs in a notebook with ipywidgets.

    In a notebook without ipywidgets, print once that a bar needs them.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_jupyter:
        return console.is_interactive
    if importlib.util.find_spec("ipywidgets") is not None:
        return True
    _advise()
    return False


@functools.cache
def _advise() -> None:
    say("picstore: pip install ipywidgets draws a bar of progress here, in place of lines")


class Silence:
    """Display that shows no progress, base class of the other displays; if ``remarks`` is True, it prints remarks."""

    def __init__(self, *, remarks: bool = False) -> None:
        self._remarks = remarks

    def begin_stage(self, stage: str) -> None:
        pass

    def set_total(self, total: int, done: int) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def remark(self, text: str) -> None:
        if self._remarks:
            say(text)


class Bar(Silence):
    """Progress bar that shows the stage, items done and in total, images per second, time elapsed and time left."""

    def __init__(self, verb: str) -> None:
        from rich import progress
        from rich.console import Console

        super().__init__(remarks=True)
        self._verb = verb
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[rate]} images/s"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(verb, total=None, rate="")

    def begin_stage(self, stage: str) -> None:
        self._progress.update(self._task, description=f"{self._verb}: {stage}")

    def set_total(self, total: int, done: int) -> None:
        # Start the bar only now, because the compilation of kernels, which comes before, shows a bar of its own.
        self._progress.start()
        self._progress.update(self._task, total=total, completed=done)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)
        speed = self._progress.tasks[0].speed
        self._progress.update(self._task, rate=f"{speed:,.0f}" if speed else "")

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class Meter:
    """Measurement of a verb's progress: seconds since the verb began, and items and rate of its current stage."""

    def __init__(self, verb: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._verb, self._clock = verb, clock
        self._began = clock()
        self._stage = ""
        self._since = self._began  # Clock's time at which measuring the current stage's rate began.
        self._done = self._earlier = 0  # Items of the stage done so far, and items done by interrupted runs.
        self._total: int | None = None

    def begin_stage(self, stage: str) -> None:
        self._stage, self._since = stage, self._clock()
        self._done = self._earlier = 0
        self._total = None

    def set_total(self, total: int, done: int) -> None:
        self._total, self._done, self._earlier, self._since = total, done, done, self._clock()

    def advance(self, count: int) -> None:
        self._done += count

    def is_complete(self) -> bool:
        return self._done == self._total

    def report(self) -> ProgressReport:
        now, made = self._clock(), self._done - self._earlier
        rate = made / (now - self._since) if made and now > self._since else None
        left = (self._total - self._done) / rate if rate and self._total is not None else None
        return ProgressReport(
            verb=self._verb,
            stage=self._stage,
            done=None if self._total is None else self._done,
            total=self._total,
            rate=rate and round(rate, 1),
            seconds=round(now - self._began, 1),
            left=None if left is None else round(left, 1),
        )


class Callback(Silence):
    """Display that calls a function with :class:`ProgressReport` objects; the function's exceptions end the verb."""

    def __init__(self, verb: str, function: Callable[[ProgressReport], object]) -> None:
        super().__init__()  # Show no remarks, because a Python caller finds them in the verb's result.
        self._meter, self._function = Meter(verb), function
        self._last = 0.0

    def begin_stage(self, stage: str) -> None:
        self._meter.begin_stage(stage)
        self._call()

    def set_total(self, total: int, done: int) -> None:
        self._meter.set_total(total, done)
        self._call()

    def advance(self, count: int) -> None:
        self._meter.advance(count)
        if time.monotonic() - self._last >= CALLBACK_INTERVAL or self._meter.is_complete():
            self._call()

    def _call(self) -> None:
        self._last = time.monotonic()
        self._function(self._meter.report())


class Lines(Silence):
    """Display that prints a line on stderr when a stage begins, and further lines at regular intervals from a thread.

    Args:
        as_json: whether to print each line as a JSON object.
        interval: seconds between two lines; INTERVAL by default.
    """

    def __init__(
        self,
        verb: str,
        *,
        as_json: bool = False,
        interval: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(remarks=True)
        self._meter = Meter(verb, clock=clock)
        self._as_json, self._interval = as_json, INTERVAL if interval is None else interval
        self._lock = threading.Lock()  # Guards ``_meter``, which the verb changes and the thread of lines reads.
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def begin_stage(self, stage: str) -> None:
        with self._lock:
            self._meter.begin_stage(stage)
            self._print()

    def set_total(self, total: int, done: int) -> None:
        with self._lock:
            self._meter.set_total(total, done)

    def advance(self, count: int) -> None:
        with self._lock:
            self._meter.advance(count)

    def _print(self) -> None:
        report = self._meter.report()
        # Ignore errors, as of a closed pipe or a file on a full disk, because the verb must continue.
        with suppress(OSError):
            say(ascii_json(report.to_json()) if self._as_json else _line(report))

    def _tick(self) -> None:
        while not self._ended.wait(self._interval):
            with self._lock:
                if self._meter.report().stage:
                    self._print()

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def _line(report: ProgressReport) -> str:
    """Format a report: ``picstore convert: rows, 120,000 of 1,281,000 images, 812 images/s, 24 min left``."""
    parts = [report.stage]
    if report.total is not None:
        parts.append(f"{report.done:,} of {counted(report.total, 'image')}")
        parts.append(f"{report.rate:,.0f} images/s" if report.rate else "")
        parts.append(f"{_duration(report.left)} left" if report.left is not None else "")
    elif report.seconds >= 1:
        parts.append(f"after {_duration(report.seconds)}")
    return f"picstore {report.verb}: " + ", ".join(filter(None, parts))


def _duration(seconds: float) -> str:
    """Format a duration in seconds as ``45 s``, ``24 min`` or ``3 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
