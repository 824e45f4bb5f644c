"""Output of all verbs. Names and reasons come from files of strangers, so no control character reaches the terminal."""

from __future__ import annotations

from typing import Any

import click

from picstore.display.terminal import ascii_json, visible


def echo(*lines: str, err: bool = False) -> None:
    """Print lines; whatever cannot be printed, also a newline in a line, appears as ``\\x1b``, ``\\n``, ``\\u202e``."""
    for line in lines:
        click.echo(visible(line), err=err)


def echo_json(value: Any, *, err: bool = False) -> None:
    """Print a value as one line of JSON, in ASCII."""
    click.echo(ascii_json(value), err=err)
