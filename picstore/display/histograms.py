"""Histograms of columns, with bins that stay while a filter changes, and bars as lines of text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from picstore.arrays import F64, Array, Bools

_BINS = 40
# If the largest value is at least this many times the smallest, bins are evenly spaced on a logarithmic scale.
_WIDE = 12.0
# Columns that ``summarize`` counts.
SUMMARIZED = ("label", "width", "height", "bytes")
_MAX_VALUES = 200  # largest number of named values to list, the most frequent ones
_TITLES = {"label": "images by class", "width": "by width", "height": "by height", "bytes": "by bytes of the JPEG"}
_CLASSES = 12  # largest number of classes to print
_WIDEST = 60  # largest width of a bar, in characters
_NAME = 24  # largest number of characters of a name
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of the values of a column.

    Attributes:
        name: name of the column.
        edges: edges of the bins; a bin includes its lower edge, the last also its upper edge. Empty for named values.
        values, names: counted values and their names; empty for bins.
        counts: number of counted records by bin or value, such as those that a filter of the viewer leaves.
        totals: number of all records by bin or value.
        others: number of distinct values that ``values`` leaves out.
    """

    name: str
    edges: tuple[float, ...]
    values: tuple[int | str, ...]
    names: tuple[str, ...]
    counts: tuple[int, ...]
    totals: tuple[int, ...]
    others: int = 0


@dataclass(frozen=True, slots=True)
class Binned:
    """Division of a column's values into bins, so that selections of records can be counted fast.

    Attributes:
        numbers: (n,), index of each record's bin; −1 for no bin.
        shown: indices of the bins to list, in the order of the histogram.
        empty: the histogram to return, without counts.
    """

    numbers: Array
    shown: Array
    empty: Histogram

    def spread(self, marks: Bools) -> Binned:
        """Return the bins of ``len(marks)`` records: the i-th marked record gets bin ``numbers[i]``, others no bin."""
        numbers = np.full(len(marks), -1, self.numbers.dtype)
        numbers[marks] = self.numbers
        return replace(self, numbers=numbers)

    def count(self, positions: Array | None = None, whole: Histogram | None = None) -> Histogram:
        """Count the records at ``positions``, by default all; the totals are from ``whole``, which counts all."""
        chosen = self.numbers if positions is None else self.numbers[positions]
        size = int(self.shown.max(initial=-1)) + 1
        counts = np.bincount(chosen[chosen >= 0], minlength=size)[self.shown]
        listed = tuple(counts.tolist())
        return replace(self.empty, counts=listed, totals=listed if whole is None else whole.totals)


def bin_values(name: str, values: Array, names: Sequence[str] | None = None, *, bins: int = _BINS) -> Binned:
    """Divide a column's values into at most ``bins`` bins; if ``names`` of values are given, into a bin per value."""
    if names is not None:
        return _by_value(name, values, names)
    known = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=np.bool_)
    edges = bin_edges(values[known] if not known.all() else values, bins)
    numbers = np.searchsorted(edges[1:-1], values, side="right").astype(np.int16)
    numbers[~known] = -1
    shown = np.arange(max(0, len(edges) - 1))
    return Binned(numbers, shown, Histogram(name, tuple(edges.tolist()), (), (), (), ()))


def bin_edges(values: Array, bins: int = _BINS) -> F64:
    """Return the edges of at most ``bins`` bins that hold all values; for integers, edges are integers."""
    if not len(values):
        return np.zeros(0)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.array([low, high])
    wide = low > 0 and high / low >= _WIDE
    edges = np.geomspace(low, high, bins + 1) if wide else np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high
    return np.unique(np.rint(edges)) if values.dtype.kind in "iu" else edges


def _by_value(name: str, values: Array, names: Sequence[str]) -> Binned:
    """Return bins with one distinct value each; only the most frequent values are listed, in this order."""
    distinct, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    order, counted = _most_frequent(name, distinct, counts, names)
    smallest = np.int16 if len(distinct) < 1 << 15 else np.int32
    return Binned(numbers.astype(smallest), order, replace(counted, counts=(), totals=()))


def _most_frequent(name: str, distinct: Array, counts: Array, names: Sequence[str]) -> tuple[Array, Histogram]:
    """Return the indices in ``distinct`` of the most frequent values, and the histogram of these values."""
    order = np.argsort(-counts, kind="stable")[:_MAX_VALUES]
    codes = distinct[order].tolist()
    listed = tuple(names[code] if 0 <= code < len(names) else "" for code in codes)
    shown: tuple[int | str, ...] = tuple(codes) if name == "label" else listed
    found = tuple(counts[order].tolist())
    return order, Histogram(name, (), shown, listed, found, found, others=len(distinct) - len(order))


def count_labels(labels: Array, counts: Array, classes: Sequence[str]) -> Histogram:
    """Build the histogram of classes from distinct labels, (n,), and each label's number of records, (n,)."""
    return _most_frequent("label", labels, counts, classes)[1]


def summarize(columns: Mapping[str, Array], classes: Sequence[str], *, bins: int = _BINS) -> dict[str, Histogram]:
    """Count records by class, width, height and bytes, from the columns SUMMARIZED."""
    return {
        "label": bin_values("label", columns["label"], classes).count(),
        **summarize_sizes(columns, bins=bins),
    }


def summarize_sizes(columns: Mapping[str, Array], *, bins: int = _BINS) -> dict[str, Histogram]:
    """Count records by width, height and bytes, from the columns of these names."""
    return {name: bin_values(name, columns[name], bins=bins).count() for name in ("width", "height", "bytes")}


def histogram_lines(histograms: Mapping[str, Mapping[str, Any]], *, containers: int) -> Iterator[str]:
    """Yield the lines that print the histograms of an ``InfoResult``: for each, a title and a line per bar.

    The title states the number of containers that a histogram covers, unless it covers all ``containers``.
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
    """Return a note that only ``counted`` of all ``containers`` were counted; an empty string if all were."""
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
