"""Text for a terminal; control characters in it are escaped, because names and messages may come from any file."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(text: str) -> None:
    """Print a line on stderr, with unprintable characters escaped."""
    print(visible(text), file=sys.stderr, flush=True)


def ascii_json(value: Any) -> str:
    """Serialize a value as JSON on one line, with escapes for all characters that are not printable ASCII."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def visible(text: str) -> str:
    """Escape characters that are not printable: control characters, marks of text direction, and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
