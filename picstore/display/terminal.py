"""Text for a terminal, with escapes for the control characters that names and messages of strangers may contain."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(text: str) -> None:
    """Print a line on stderr."""
    print(visible(text), file=sys.stderr, flush=True)


def ascii_json(value: Any) -> str:
    """Serialize a value as one line of printable ASCII JSON."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def visible(text: str) -> str:
    """Escape characters that are not printable: control characters, marks of text direction, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
