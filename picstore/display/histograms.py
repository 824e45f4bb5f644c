"""Histograms of a dataset's columns, whose bins do not change with a filter, and bars as lines of text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from picstore.arrays import F64, Array, Bools

_BINS = 40
_WIDE = 12.0  # Least ratio of largest to smallest value for which bins are equally wide on a logarithmic scale.
SUMMARIZED = ("label", "width", "height", "bytes")
_MAX_VALUES = 200  # Largest number of distinct values that a histogram lists: the most frequent ones.
_TITLES = {"label": "images by class", "width": "by width", "height": "by height", "bytes": "by bytes of the JPEG"}
_CLASSES = 12  # Largest number of classes to print.
_WIDEST = 60  # Largest width of a bar, in characters.
_NAME = 24  # Largest number of characters of a value's name before the bar.
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Histogram:
    """Histogram of a column: counts of records by bin or by value.

    Attributes:
        edges: edges of the bins; each bin includes its lower edge, the last bin also its upper edge. Empty if values
            are counted.
        values, names: counted values and their names; empty if records are counted by bin.
        counts: number of counted records by bin or value; the viewer counts only records that match its filter.
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
    """Division of a column's values into bins, which makes counting any selection of records fast.

    Attributes:
        numbers: index of each record's bin, integers (n,); −1 if the record has no bin.
        shown: indices of the bins that a histogram lists, in the histogram's order.
        empty: histogram with the bins' edges or values, but without counts.
    """

    numbers: Array
    shown: Array
    empty: Histogram

    def spread(self, marks: Bools) -> Binned:
        """Return bins of ``len(marks)`` records: the marked ones are this object's, in order; others have no bin."""
        numbers = np.full(len(marks), -1, self.numbers.dtype)
        numbers[marks] = self.numbers
        return replace(self, numbers=numbers)

    def count(self, positions: Array | None = None, whole: Histogram | None = None) -> Histogram:
        """Return the histogram of the records at ``positions``, by default of all records.

        ``whole`` is the histogram of all records, from which the result copies ``totals``. Without ``whole``,
        ``totals`` are the result's ``counts``.
        """
        chosen = self.numbers if positions is None else self.numbers[positions]
        size = int(self.shown.max(initial=-1)) + 1
        counts = np.bincount(chosen[chosen >= 0], minlength=size)[self.shown]
        listed = tuple(counts.tolist())
        return replace(self.empty, counts=listed, totals=listed if whole is None else whole.totals)


def bin_values(name: str, values: Array, names: Sequence[str] | None = None, *, bins: int = _BINS) -> Binned:
    """Divide a column's values into at most ``bins`` bins, or into a bin per distinct value if ``names`` are given."""
    if names is not None:
        return _by_value(name, values, names)
    known = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=np.bool_)
    edges = bin_edges(values[known] if not known.all() else values, bins)
    numbers = np.searchsorted(edges[1:-1], values, side="right").astype(np.int16)
    numbers[~known] = -1
    shown = np.arange(max(0, len(edges) - 1))
    return Binned(numbers, shown, Histogram(name, tuple(edges.tolist()), (), (), (), ()))


def bin_edges(values: Array, bins: int = _BINS) -> F64:
    """Return the edges of at most ``bins`` bins that together cover all values; bins of integers have integer edges."""
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
    """Divide a column into one bin per distinct value; a histogram lists only the most frequent values.

    ``values`` are indices in ``names``; a value outside of ``names`` is listed with an empty name.
    """
    distinct, numbers, counts = np.unique(values, return_inverse=True, return_counts=True)
    order, counted = _most_frequent(name, distinct, counts, names)
    smallest = np.int16 if len(distinct) < 1 << 15 else np.int32
    return Binned(numbers.astype(smallest), order, replace(counted, counts=(), totals=()))


def _most_frequent(name: str, distinct: Array, counts: Array, names: Sequence[str]) -> tuple[Array, Histogram]:
    """Return the indices in ``distinct`` of the most frequent values, by descending count, and their histogram."""
    order = np.argsort(-counts, kind="stable")[:_MAX_VALUES]
    codes = distinct[order].tolist()
    listed = tuple(names[code] if 0 <= code < len(names) else "" for code in codes)
    shown: tuple[int | str, ...] = tuple(codes) if name == "label" else listed
    found = tuple(counts[order].tolist())
    return order, Histogram(name, (), shown, listed, found, found, others=len(distinct) - len(order))


def count_labels(labels: Array, counts: Array, classes: Sequence[str]) -> Histogram:
    """Build the histogram of classes from distinct labels, (n,), and the number of records with each label, (n,)."""
    return _most_frequent("label", labels, counts, classes)[1]


def summarize(columns: Mapping[str, Array], classes: Sequence[str], *, bins: int = _BINS) -> dict[str, Histogram]:
    """Build histograms of the columns SUMMARIZED: class, width, height and bytes of the records."""
    return {
        "label": bin_values("label", columns["label"], classes).count(),
        **summarize_sizes(columns, bins=bins),
    }


def summarize_sizes(columns: Mapping[str, Array], *, bins: int = _BINS) -> dict[str, Histogram]:
    """Build histograms of the columns ``width``, ``height`` and ``bytes``."""
    return {name: bin_values(name, columns[name], bins=bins).count() for name in ("width", "height", "bytes")}


def histogram_lines(histograms: Mapping[str, Mapping[str, Any]], *, containers: int) -> Iterator[str]:
    """Yield the printed lines of an ``InfoResult``'s histograms: for each histogram a title, and a line per bar.

    A title states the number of counted containers (blocks of about 8 MiB of records), unless the histogram counts all
    ``containers`` of the dataset.
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
    """Return a note that a histogram counts only ``counted`` of ``containers`` containers; "" if it counts them all."""
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
        eighths = max(round(8 * room * count / most), 1 if count else 0)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        yield f"    {name:<{widest}}  {count:>{digits},}  {bar}".rstrip()
