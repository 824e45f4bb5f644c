"""HTML of objects in a notebook: a table of facts and thumbnails. All text in it is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from html import escape

from PIL import Image

from picstore.arrays import U8

_SIDE = 96  # Longer side of a thumbnail, in pixels.
_CELL = "padding: 2px 12px 2px 0; text-align: left; vertical-align: top"
_MAX_TEXT = 300  # Number of characters to which names, values and captions are shortened.


def format_facts(title: str, facts: Mapping[str, object], thumbnails: Iterable[tuple[U8, str]] = ()) -> str:
    """Return HTML for a notebook, in its colors: a title, a table of named facts, and images with captions."""
    rows = "".join(
        f'<tr><th style="{_CELL}; font-weight: normal; opacity: 0.65">{_shown(name)}</th>'
        f'<td style="{_CELL}">{_shown(value)}</td></tr>'
        for name, value in facts.items()
    )
    figures = "".join(
        f'<figure style="margin: 0 6px 6px 0; width: {_SIDE}px"><img src="{_data_url(pixels)}" alt="{_shown(caption)}">'
        f'<figcaption style="font-size: 80%; overflow-wrap: anywhere">{_shown(caption)}</figcaption></figure>'
        for pixels, caption in thumbnails
    )
    strip = f'<div style="display: flex; flex-wrap: wrap; margin-top: 6px">{figures}</div>' if figures else ""
    return f'<div><b>{_shown(title)}</b><table style="border-collapse: collapse">{rows}</table>{strip}</div>'


def _shown(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…")


def _data_url(pixels: U8) -> str:
    image = Image.fromarray(pixels)
    image.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    image.save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
