"""Output of all verbs. Names and reasons come from files of strangers, so no control character reaches the terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

import click


def echo(*lines: str, err: bool = False) -> None:
    """Print lines; whatever cannot be printed, also a newline in a line, appears as ``\\x1b``, ``\\n``, ``\\u202e``."""
    for line in lines:
        click.echo(visible(line), err=err)


def echo_json(value: Any, *, err: bool = False) -> None:
    """Print a value as one line of JSON, in ASCII."""
    click.echo(json.dumps(value).replace("\x7f", "\\u007f"), err=err)


def on_terminal() -> bool:
    """Whether stderr, where progress bars are, is a terminal."""
    return sys.stderr.isatty()


def visible(text: str) -> str:
    """Escape control characters, marks that change the direction of text, and halves of UTF-16 pairs."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
