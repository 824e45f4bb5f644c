"""Listing of a source part by part, in the order of the parts: here, and by tasks of the engine where it takes seconds.

    parts ──→ list_part(part) → FoundPart ──→ ListingBuilder ──→ Listing
    parts ──→ tasks, each with a ListingBuilder ──→ PackedListing ──→ the same ListingBuilder

A task sends its inputs back packed, which this process writes to its table as they are, 13 bytes each.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from picstore.prepare.engine.worker_processes import Engine, run_each
from picstore.prepare.progress import ProgressCallback
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.samples import ListingBuilder, Notes, PackedListing, SourceSample
from picstore.storage.location.resolve import map_concurrently

T = TypeVar("T")

_TRIED = 16  # parts, whose time tells how long the rest takes
_MIN_SECONDS = 1.0  # of the rest: a process takes 30 ms to begin with, and the first task 0.3 s
_TASK_INPUTS = 50_000  # 0.5 s, and 0.7 MB to send
_TASKS_A_WORKER = 4


@dataclass(frozen=True, slots=True)
class FoundPart:
    """Inputs or samples of a part of a source, and notes for the user.

    Attributes:
        items: inputs, whose labels are numbers of classes, or samples, whose labels are numbered once all are known.
        notes: what the user is told.
    """

    items: Sequence[Input | SourceSample]
    notes: Notes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartsTask(Generic[T]):
    """Task to list some parts, the first of which is number ``first``, by a module's function."""

    first: int
    list_part: Callable[[T], FoundPart]
    parts: tuple[T, ...]


def list_parts(list_part: Callable[[T], FoundPart], parts: Sequence[T], engine: Engine | None) -> ListingBuilder:
    """List parts of a source in their order, 16 at a time where they wait for a disk or a store.

    Args:
        list_part: a module's function.
        parts: picklable.
        engine: runs tasks if the rest of the parts would take this process over a second; None for no tasks.
    """
    builder, began = ListingBuilder(), time.monotonic()
    _list_here(list_part, parts[:_TRIED], builder)
    rest = parts[_TRIED:]
    expected = (time.monotonic() - began) / _TRIED * len(rest)
    if not rest or engine is None or engine.workers < 2 or expected < _MIN_SECONDS:
        _list_here(list_part, rest, builder)
        return builder
    inputs = len(builder) / _TRIED * len(rest)
    size = math.ceil(len(rest) / max(_TASKS_A_WORKER * engine.workers, inputs / _TASK_INPUTS))
    tasks = [PartsTask(k, list_part, tuple(rest[k : k + size])) for k in range(0, len(rest), size)]
    for packed in _run_in_order(tasks, engine):
        builder.add_packed(packed)
    return builder


def run_task(task: PartsTask[Any], _: ProgressCallback) -> PackedListing:
    """List the parts of a task."""
    builder = ListingBuilder()
    _list_here(task.list_part, task.parts, builder)
    return builder.pack()


def _list_here(list_part: Callable[[T], FoundPart], parts: Sequence[T], builder: ListingBuilder) -> None:
    for found in map_concurrently(list_part, parts):
        for item in found.items:
            builder.add(item)
        builder.add_notes(found.notes)


def _run_in_order(tasks: Sequence[PartsTask[Any]], engine: Engine) -> Iterator[PackedListing]:
    """Run tasks; yield their results in the order of the tasks."""
    done: dict[int, PackedListing] = {}
    expected = deque(task.first for task in tasks)
    for task, found in run_each(run_task, tasks, workers=engine):
        done[task.first] = found
        while expected and expected[0] in done:
            yield done.pop(expected.popleft())
