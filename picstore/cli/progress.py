"""Progress bar on stderr; shows nothing if stderr is no terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """Shows the number of items done and in total, the rate, and the time left."""

    def __init__(self, verb: str) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn(verb),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} images/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(verb, total=None, rate="")

    def set_total(self, total: int, done: int) -> None:
        self._progress.update(self._task, total=total, completed=done)

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)
        speed = self._progress.tasks[0].speed
        self._progress.update(self._task, rate=f"{speed:,.0f}" if speed else "")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
