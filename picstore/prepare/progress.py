"""Progress protocol: how a long operation tells a display how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

ProgressCallback: TypeAlias = Callable[[int], None]  # called with the number of items done since the last call


class Progress(Protocol):
    """Display of how far an operation is."""

    def set_total(self, total: int, done: int) -> None:
        """Announce ``total`` items, of which an earlier run finished ``done``."""

    def advance(self, count: int) -> None:
        """Count ``count`` more items as done."""


def progress_callback(progress: Progress | None) -> ProgressCallback:
    """Return ``progress.advance``, or a callback that does nothing where there is no display."""
    return progress.advance if progress is not None else lambda _: None
