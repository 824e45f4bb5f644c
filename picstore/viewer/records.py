"""Records of a dataset that match a filter: their positions, which are kept for later requests, and histograms.

The evaluation of a condition in SQL is abandoned if the client disconnects or if it takes too long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, wait

import numpy as np

from picstore.arrays import I64, Array, Bools
from picstore.display.histograms import Binned, Histogram, bin_values
from picstore.errors import MissingDependency, UsageError
from picstore.storage.conditions import Condition
from picstore.storage.dataset import Dataset
from picstore.storage.format.layout import SAMPLINGS
from picstore.storage.record_table import RecordTable
from picstore.viewer.background import start_thread
from picstore.viewer.queries import Filter
from picstore.viewer.text_search import ExtraTexts, texts_with

# Event that is never set, which callers that are not requests pass as ``gone``, because they cannot disconnect.
STAYS = threading.Event()
_KEPT_FILTERS = 4  # Number of filters whose results are kept; a result takes 4 bytes per selected record.
SECONDS = 30.0  # Longest evaluation of a condition; a million records take less than 1 s.
_POLL = 0.05  # Seconds between two checks of whether the client has disconnected.
_GRACE = 1.0  # Seconds to repeat an interruption: DuckDB ignores it if the evaluation has not begun.
# At most four conditions are evaluated at a time. The thread of a condition counts even if its request has ended.
_running = threading.BoundedSemaphore(4)


class Interrupted(UsageError):
    """Error raised when the evaluation of a condition is abandoned because the client has disconnected."""


class Records:
    """Records of a dataset, selected by filters. Threads may share this object.

    The record tables of all containers are read when a filter or histogram first needs them.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self._table = dataset.table
        # Guards all attributes that are set below, because requests run in several threads.
        self._lock = threading.Lock()
        self.extras = ExtraTexts(dataset)
        self._found: OrderedDict[tuple[Filter, int], Future[Array]] = OrderedDict()
        self._binned: dict[str, Binned] | None = None
        self._whole: dict[str, Histogram] = {}
        self._samplings: Array | None = None
        self._texts = [name for name in dataset.columns if dataset.column(name).ends is not None]

    def read(self) -> None:
        """Read the record tables and import DuckDB now, so that the first request with a filter need not wait."""
        with self._lock:
            _ = self._table["id"]
        with contextlib.suppress(MissingDependency):
            # Evaluate any condition in order to import DuckDB and pyarrow, which takes 0.4 s.
            self._table.where("id = 0")

    def count(self, chosen: Filter, gone: threading.Event = STAYS) -> int:
        """Return the number of records that match a filter; raise Interrupted if ``gone`` is set during the search."""
        return len(self._positions(chosen, gone)) if chosen else len(self.dataset)

    def positions(self, chosen: Filter, start: int, count: int, gone: threading.Event = STAYS) -> I64:
        """Return the positions of up to ``count`` records that match a filter; skip the first ``start`` matches."""
        if not chosen:
            return np.arange(min(start, len(self.dataset)), min(start + count, len(self.dataset)))
        return self._positions(chosen, gone)[start : start + count].astype(np.int64)

    def position_of(self, id_: int) -> int:
        """Return the position of the record that has an id; raise UsageError if there is no such record."""
        with self._lock:
            found = np.flatnonzero(self._table["id"] == np.uint64(id_).astype(np.int64))
        if not len(found):
            raise UsageError(f"there is no record with the id {id_}")
        return int(found[0])

    def positions_of(self, ids: list[int]) -> list[int]:
        """Return for each id the position of the record that has the id, or -1 if there is no such record."""
        wanted = np.array(ids, dtype=np.uint64).astype(np.int64)
        with self._lock:
            stored = self._numbers("id")
        chosen = np.flatnonzero(np.isin(stored, wanted))
        found = dict(zip(stored[chosen].tolist(), chosen.tolist(), strict=True))
        return [found.get(number, -1) for number in wanted.tolist()]

    def class_names(self, positions: list[int]) -> list[str]:
        """Return the class name of the record at each position; "" for position -1 and for records without a label."""
        with self._lock:
            labels = self._numbers("label")
        numbers = [int(labels[position]) if position >= 0 else -1 for position in positions]
        names = self.dataset.classes
        return [
            names[number] if 0 <= number < len(names) else "" if number < 0 else f"label {number}" for number in numbers
        ]

    def histograms(self, chosen: Filter, gone: threading.Event = STAYS) -> list[Histogram]:
        """Return histograms of classes, samplings and numeric columns, for all records and for a filter's matches.

        The bins do not depend on the filter.
        """
        positions = self._positions(chosen, gone) if chosen else None
        with self._lock:
            if self._binned is None:
                self._binned = self._bin_columns()
                self._whole = {name: binned.count() for name, binned in self._binned.items()}
            binned = self._binned
        if positions is None:
            return [self._whole[name] for name in binned]
        return [binned[name].count(positions, self._whole[name]) for name in binned]

    def _bin_columns(self) -> dict[str, Binned]:
        """Divide columns of numbers, samplings and labels into bins; a record with a damaged index entry has no bin."""
        binned, known = {}, self._numbers("id") != -1
        for name in self._table.names:
            if name == "id" or name in self._texts:
                continue
            values = self._numbers(name)
            if values.ndim > 1 or values.dtype.kind not in "iuf":
                continue
            names = SAMPLINGS if name == "sampling" else self.dataset.classes if name == "label" else None
            binned[name] = bin_values(name, values[known], names).spread(known)
        return binned

    def _numbers(self, name: str) -> Array:
        """Return a column as an array. Chroma samplings become indices in SAMPLINGS; other strings stay objects."""
        if name != "sampling":
            return np.asarray(self._table[name])
        if self._samplings is None:
            texts = np.asarray(self._table[name])
            self._samplings = np.zeros(len(texts), dtype=np.uint8)
            for code, text in enumerate(SAMPLINGS):
                self._samplings[texts == text] = code
        return self._samplings

    def _positions(self, chosen: Filter, gone: threading.Event) -> Array:
        """Return the positions of all records that match a filter.

        Of simultaneous requests with one filter, only the first searches; the others wait for its result.
        """
        while True:
            # The key of a filter with a text includes the number of containers whose extras were read, because more
            # records may match once more extras are read.
            key = (chosen, self.extras.read.done if chosen.text else 0)
            with self._lock:
                found = self._found.get(key)
                mine = found is None
                if found is None:
                    found = self._found[key] = Future()
                    while len(self._found) > _KEPT_FILTERS:
                        self._found.popitem(last=False)
                self._found.move_to_end(key)
            if not mine:
                try:
                    return found.result()
                except Interrupted:
                    # The client of the request that searched has disconnected, so this request must search itself.
                    continue
            try:
                marks = self._mark(chosen, gone)
                smallest = np.int32 if len(marks) < 1 << 31 else np.int64
                found.set_result(np.flatnonzero(marks).astype(smallest))
                return found.result()
            except BaseException as error:
                with self._lock:
                    if self._found.get(key) is found:
                        del self._found[key]
                found.set_exception(error)
                raise

    def _mark(self, chosen: Filter, gone: threading.Event) -> Bools:
        """Return which records match a filter, bool (records,); SQL, which may be slow, runs without the lock."""
        with self._lock:
            marks = self._mark_columns(chosen)
            # Read the record tables while the lock is held, because ``evaluate`` reads them without the lock.
            _ = self._table["id"]
        if chosen.where:
            marks &= evaluate(self._table, chosen.where, gone=gone)
        return marks

    def _mark_columns(self, chosen: Filter) -> Bools:
        """Return which records match all conditions of a filter except that in SQL, bool (records,)."""
        marks = np.ones(len(self.dataset), dtype=np.bool_)
        if chosen.labels:
            marks &= np.isin(self._numbers("label"), chosen.labels)
        if chosen.samplings:
            codes = [SAMPLINGS.index(name) for name in chosen.samplings if name in SAMPLINGS]
            marks &= np.isin(self._numbers("sampling"), codes)
        if chosen.ids:
            marks &= self._mark_ids(chosen.ids)
        for name, low, high in chosen.ranges:
            marks &= self._mark_range(name, low, high)
        if chosen.text:
            marks &= self._mark_text(chosen.text)
        return marks

    def _mark_ids(self, spans: tuple[tuple[int, int], ...]) -> Bools:
        ids = np.asarray(self._table["id"]).view(np.uint64)
        firsts, lasts = np.array(sorted(spans), dtype=np.uint64).T
        lasts = np.maximum.accumulate(lasts)
        span = np.searchsorted(firsts, ids, side="right")
        marks: Bools = (span > 0) & (ids <= lasts[np.maximum(span, 1) - 1])
        return marks

    def _mark_range(self, name: str, low: float | None, high: float | None) -> Bools:
        values = self._numbers(name)
        if values.ndim > 1 or name == "sampling" or values.dtype.kind not in "iuf":
            raise UsageError(f"the column {name!r} does not hold numbers; use a condition")
        marks = np.ones(len(values), dtype=np.bool_)
        if low is not None:
            marks &= values >= low
        if high is not None:
            marks &= values <= high
        return marks

    def _mark_text(self, text: str) -> Bools:
        """Return which records have a text in their class name, a column of strings, or an extra read so far."""
        wanted = text.lower()
        labels = [label for label, name in enumerate(self.dataset.classes) if wanted in name.lower()]
        marks: Bools = np.isin(self._numbers("label"), labels)
        marks |= self.extras.mark(text)
        for column in map(self.dataset.column, self._texts):
            if column.ends is not None and len(column.ids):
                indices, found = column.find_ids(self._numbers("id"))
                marks |= found & texts_with(column.values, column.ends, text)[indices]
        return marks


def evaluate(table: RecordTable, text: str, *, gone: threading.Event, seconds: float | None = None) -> Bools:
    """Return which records meet a condition, as ``table.where`` does, within a limited time.

    Args:
        gone: event that is set when no client waits for the result any more.
        seconds: maximum time that the evaluation may take; SECONDS by default.

    Raises:
        Interrupted: the client has disconnected.
        UsageError: the evaluation took too long, or the condition is invalid.
        MissingDependency: a library that ``table.where`` needs is not installed.
    """
    limit = SECONDS if seconds is None else seconds
    end = time.monotonic() + limit

    def check() -> None:
        if gone.is_set():
            raise Interrupted("the condition was given up because nobody waits for it")
        if time.monotonic() >= end:
            raise UsageError(f"the condition took more than {limit:g} s and was ended; write a simpler one")

    while not _running.acquire(timeout=_POLL):
        check()
    condition, result = _start(table, text)
    try:
        while not wait([result], _POLL).done:
            check()
    except UsageError:
        _interrupt(condition, result)
        raise
    return result.result()


def _start(table: RecordTable, text: str) -> tuple[Condition, Future[Bools]]:
    """Begin to evaluate a condition in a thread; return the Condition, to interrupt it, and the result's Future."""
    result: Future[Bools] = Future()

    def run() -> None:
        try:
            result.set_result(table.where(condition))
        except BaseException as error:
            result.set_exception(error)
        finally:
            _running.release()

    try:
        condition = table.condition(text)
        start_thread(run)
    except BaseException:
        _running.release()
        raise
    return condition, result


def _interrupt(condition: Condition, result: Future[Bools]) -> None:
    """Interrupt an evaluation every _POLL seconds until it ends; give up after _GRACE seconds, and let it run on."""
    last = time.monotonic() + _GRACE
    while not result.done() and time.monotonic() < last:
        condition.interrupt()
        wait([result], _POLL)
