"""The progress display of a verb that runs, as its options ``--quiet`` and ``--json`` and the terminal ask for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import click

from picstore.cli.options import is_quiet
from picstore.display.progress import Bar, Lines, Silence, has_bar


def show_progress(verb: str) -> AbstractContextManager[Bar | Lines | Silence]:
    """Make the display, which prints on stderr."""
    if is_quiet():
        return nullcontext(Silence(remarks=True))
    if has_bar():
        return Bar(verb)
    return Lines(verb, as_json=click.get_current_context().params["as_json"])
