"""Histograms as lines of text for a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

_TITLES = {"label": "images by class", "width": "by width", "height": "by height", "bytes": "by bytes of the JPEG"}
_CLASSES = 12
_WIDEST = 60  # columns of a bar
_NAME = 24  # columns of a name
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def histogram_lines(histograms: Mapping[str, Mapping[str, Any]], *, containers: int) -> Iterator[str]:
    """Format the histograms of ``picstore info --json``: a title, and a line a bar.

    The title of one that does not count all ``containers`` of the data set says of how many it is.
    """
    for name, histogram in histograms.items():
        counts = histogram["counts"]
        if not counts:
            continue
        rows = list(zip(_names(histogram), counts, strict=True))
        listed = rows[:_CLASSES] if name == "label" else rows
        yield f"  {_TITLES[name]}{sample_note(histogram['containers'], containers)}"
        yield from _bars(listed)
        if left := len(rows) - len(listed) + histogram["others"]:
            yield f"    {left:,} more"


def sample_note(counted: int, containers: int) -> str:
    """Name the number of containers that figures cover, unless they cover all."""
    return "" if counted == containers else f", in a sample of {counted:,} of {containers:,} containers"


def _names(histogram: Mapping[str, Any]) -> list[str]:
    edges = histogram["edges"]
    if not edges:
        return [name or str(value) for name, value in zip(histogram["names"], histogram["values"], strict=True)]
    ends = [f"{edge:,.0f}" for edge in edges]
    if edges[0] == edges[-1]:
        return [ends[0]]
    width = max(map(len, ends))
    return [f"{low:>{width}} … {high:>{width}}" for low, high in pairwise(ends)]


def _bars(rows: Sequence[tuple[str, int]]) -> Iterator[str]:
    names = [name if len(name) <= _NAME else name[: _NAME - 1] + "…" for name, _ in rows]
    widest, digits = max(map(len, names)), max(len(f"{count:,}") for _, count in rows)
    room = max(10, min(_WIDEST, shutil.get_terminal_size().columns - widest - digits - 8))
    most = max(max(count for _, count in rows), 1)
    for name, (_, count) in zip(names, rows, strict=True):
        yield f"    {name:<{widest}}  {count:>{digits},}  {_bar(count / most, room)}".rstrip()


def _bar(fraction: float, room: int) -> str:
    eighths = max(round(8 * room * fraction), 1 if fraction else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
