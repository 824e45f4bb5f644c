"""Progress protocol: how a long operation tells a display how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

ProgressCallback: TypeAlias = Callable[[int], None]  # called with the number of items done since the last call


class Progress(Protocol):
    """Display of how far an operation is."""

    def begin_stage(self, stage: str) -> None:
        """Name the stage that begins, such as ``"rows"``; its items are announced after it."""

    def set_total(self, total: int, done: int) -> None:
        """Announce ``total`` items, of which an earlier run finished ``done``."""

    def advance(self, count: int) -> None:
        """Count ``count`` more items as done."""


def begin_stage(progress: Progress | None, stage: str, total: int | None = None, done: int = 0) -> None:
    """Name the stage that begins, and announce its items if they are counted, where there is a display."""
    if progress is not None:
        progress.begin_stage(stage)
        if total is not None:
            progress.set_total(total, done)


def progress_callback(progress: Progress | None) -> ProgressCallback:
    """Return ``progress.advance``, or a callback that does nothing where there is no display."""
    return progress.advance if progress is not None else lambda _: None
