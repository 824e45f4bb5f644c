"""ListingBuilder, which builds a Listing from samples: it numbers labels, and estimates the samples lost to damage.

The parts of a source, such as tars, are listed in order: in this process, or in tasks if listing takes seconds.

    parts ──→ list_part(part) → FoundPart ──→ ListingBuilder ──→ Listing
    parts ──→ tasks, each with a ListingBuilder ──→ PackedListing ──→ the same ListingBuilder

A task sends its inputs back packed, 13 bytes each. This process writes the packed inputs to its table unchanged.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from picstore.display.progress import ProgressCallback
from picstore.errors import UsageError, counted
from picstore.prepare.engine.worker_processes import Engine, run_each
from picstore.prepare.sources.input_table import InputTable, InputView, PackedInputs
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import Label, LabelFields, NoLabel, number_labels, quoted
from picstore.prepare.sources.lost_samples import estimate_by_others
from picstore.prepare.sources.metadata import OddValues
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.source_file import printable
from picstore.prepare.sources.splits import split_of_word
from picstore.storage.annotations import FIELDS
from picstore.storage.location.resolve import Where, map_concurrently

T = TypeVar("T")
# Messages for the user, by text: number of cases, such as files, and the name of the first case in sorted order.
Notes = dict[str, tuple[int, str]]

_SEEN = 64  # largest number of names of samples' fields to collect for messages
_MAX_NAMED = 5  # largest number of files that a message names
# Number of parts of a source, such as files, to list first, to predict the time for all other parts.
_TRIED = 16
# If this process would need more seconds than this to list the parts, worker processes list them. Starting a process
# takes 30 ms, and its first task 0.3 s.
_MIN_SECONDS = 1.0
_TASK_INPUTS = 50_000  # number of inputs per task, which take 0.5 s to list and 0.7 MB to send
_TASKS_A_WORKER = 4


def add_note(notes: Notes, text: str, example: str, count: int = 1) -> None:
    """Add ``count`` cases to the user's message ``text``; of all examples, keep the first in sorted order."""
    before, least = notes.get(text, (0, example))
    notes[text] = before + count, min(least, example)


@dataclass(frozen=True, slots=True)
class FoundPart:
    """Inputs or samples found in a part of a source, such as a file.

    Attributes:
        items: inputs with class numbers, or samples with labels to be numbered once all samples are known.
    """

    items: Sequence[Input | SourceSample]
    notes: Notes = field(default_factory=dict)


@dataclass(slots=True)
class _Facts:
    """Facts about a source that its listing needs besides inputs and labels.

    Attributes:
        attachments: names of attachments as keys, in order of appearance.
        fields: names of the samples' fields as keys, at most 64.
        splits: split names that occur in the field ``split``, as keys.
        damaged: number of inputs that stand for an unknown number of lost samples.
        alike: for each metadata field called like a target field, such as ``boxes``, the number of samples.
    """

    attachments: dict[str, None] = field(default_factory=dict)
    fields: dict[str, None] = field(default_factory=dict)
    splits: dict[str, None] = field(default_factory=dict)
    notes: Notes = field(default_factory=dict)
    odd: OddValues = field(default_factory=OddValues)
    damaged: int = 0
    alike: Counter[str] = field(default_factory=Counter)

    def update(self, other: _Facts) -> None:
        self.attachments.update(other.attachments)
        self.fields.update(other.fields)
        self.splits.update(other.splits)
        for text, (count, example) in other.notes.items():
            add_note(self.notes, text, example, count)
        self.odd.update(other.odd)
        self.damaged += other.damaged
        self.alike.update(other.alike)


@dataclass(frozen=True, slots=True)
class PackedListing:
    """Listing of some parts of a source, as a task returns it to its caller's process.

    Attributes:
        labels: number of readable samples by label. The key at position k is the label k in ``inputs``. Empty if labels
            in ``inputs`` are class numbers.
    """

    inputs: PackedInputs
    labels: dict[Label, int]
    facts: _Facts


class ListingBuilder:
    """Builder of a :class:`Listing`. Add inputs in the source's order; the constructor adds ``samples``."""

    def __init__(self, samples: Iterable[SourceSample] = ()) -> None:
        self._inputs = InputTable()
        self._facts = _Facts()
        # Provisional number of each label, in order of appearance; ``build`` replaces it by the class number.
        self._turns: dict[Label, int] = {}
        # Number of readable samples per label; a label's index in this list is its provisional number.
        self._counts: list[int] = []
        # For the inputs of each task, by the inputs' group number in ``self._inputs``: number of readable samples per
        # label.
        self._packed: dict[int, dict[Label, int]] = {}
        for sample in samples:
            self.add(sample)

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def notes(self) -> Notes:
        """Messages for the user about the parts added so far, with the number of cases and an example of each."""
        return self._facts.notes

    def add(self, item: Input | SourceSample) -> None:
        """Add a sample, or an input whose label is already a class number."""
        facts = self._facts
        if isinstance(item, SourceSample):
            turn = self._turns.setdefault(item.label, len(self._turns))
            if turn == len(self._counts):
                self._counts.append(0)
            self._counts[turn] += not item.problem
            if not item.targets:
                facts.alike.update(name for name in FIELDS if name in item.extra)
            if len(facts.fields) < _SEEN:
                facts.fields.update(dict.fromkeys(item.extra))
            if isinstance(split := item.extra.get("split"), str) and split_of_word(split):
                facts.splits[split] = None
            item = item.to_input(turn, facts.odd)
        self._inputs.append(item)
        facts.damaged += item.lost > 0
        for name, _ in item.attachments:
            facts.attachments[name] = None

    def add_part(self, found: FoundPart) -> None:
        for item in found.items:
            self.add(item)
        for text, (count, example) in found.notes.items():
            add_note(self.notes, text, example, count)

    def add_packed(self, found: PackedListing) -> None:
        self._packed[self._inputs.add_packed(found.inputs)] = found.labels
        self._facts.update(found.facts)

    def pack(self) -> PackedListing:
        """Return the inputs and facts that were added, in a form that a task can return to its parent process."""
        return PackedListing(self._inputs.pack(), self._label_counts(), self._facts)

    def _label_counts(self) -> dict[Label, int]:
        return dict(zip(self._turns, self._counts, strict=True))

    def build(
        self,
        kind: str,
        *,
        where: object = "",
        classes: Sequence[str] = (),
        remarks: Iterable[str] = (),
        labels: LabelFields | str | None = None,
        no_label: str = "",
    ) -> Listing:
        """Build the listing, and number the samples' labels by :func:`number_labels`.

        Args:
            where: source that messages name.
            classes: class names by label; empty if the source has none.
            remarks: messages for the user.
            labels: choice of the label field, or the label field that the user named.
            no_label: message if no sample has a label; by default it lists the samples' fields.

        Raises:
            UsageError: no sample has the user's label field, or labels do not fit ``classes``.
        """
        groups = {0: self._label_counts(), **self._packed}
        counts: Counter[Label] = Counter()
        for found in groups.values():
            counts.update(found)
        found_remarks = [*remarks, *(labels.remarks() if isinstance(labels, LabelFields) else ())]
        if len(self._facts.splits) > 1:
            found_remarks.append(f"the field 'split' holds {', '.join(self._facts.splits)}: all of them are taken")
        chosen = number_labels(counts, classes, where=where)
        if set(chosen.numbers.values()) == {-1} and not any(isinstance(label, NoLabel) for label in counts):
            found_remarks.append(no_label or self._no_labels(where, labels))
        for group, found in groups.items():
            if found:
                self._inputs.number_labels([chosen.numbers[label] for label in found], group=group)
        names = [printable(name) for name in chosen.names]
        inputs, losses = self._estimate_losses()
        all_remarks = [*found_remarks, *chosen.remarks, *self._facts.odd.remarks(), *losses]
        return Listing(kind, inputs, names, tuple(self._facts.attachments), all_remarks, alike=dict(self._facts.alike))

    def _estimate_losses(self) -> tuple[Sequence[Input], list[str]]:
        inputs: Sequence[Input] = self._inputs
        if not self._facts.damaged:
            return inputs, []
        estimates = estimate_by_others(inputs)
        inputs = InputView(inputs, change=lambda one: replace(one, lost=estimates[one.path]) if one.lost else one)
        files = ", ".join(printable(PurePath(path).name) for path in sorted(estimates)[:_MAX_NAMED])
        more = f" and {len(estimates) - _MAX_NAMED:,} more" if len(estimates) > _MAX_NAMED else ""
        lost = sum(estimates.values())
        return inputs, [f"damaged files have lost an unknown number of samples, about {lost:,}: {files}{more}"]

    def _no_labels(self, where: object, labels: LabelFields | str | None) -> str:
        fields = quoted(self._facts.fields)
        if isinstance(labels, LabelFields) and labels.chosen is not None:
            return f"no labels: all values of {labels.chosen!r} are missing"
        if isinstance(labels, str):
            raise UsageError(f"{where}: no sample has a value in the field {labels!r}; fields with values: {fields}")
        if not self._facts.fields:
            return "no labels: there is no other column than the image's that has values"
        return f"no labels: none of the columns {fields} has a usual name of labels; name one with --label-field"


@dataclass(frozen=True, slots=True)
class PartsTask(Generic[T]):
    """Task in which a module-level function lists ``parts`` of a source; ``first`` is the index of the first part."""

    first: int
    list_part: Callable[[T], FoundPart]
    parts: tuple[T, ...]


def list_parts(list_part: Callable[[T], FoundPart], parts: Sequence[T], engine: Engine | None) -> ListingBuilder:
    """List parts of a source, such as files, in their order, by up to 16 threads.

    Args:
        list_part: function that lists a part; at module level, because other processes import it by name.
        parts: parts of the source, which can be pickled.
        engine: engine that lists the parts after the 16th in other processes, if this process would need more than 1 s;
            None to use this process only.
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
    """List the files, or other parts of a source, that a task names; called in a worker process."""
    builder = ListingBuilder()
    _list_here(task.list_part, task.parts, builder)
    return builder.pack()


def _list_here(list_part: Callable[[T], FoundPart], parts: Sequence[T], builder: ListingBuilder) -> None:
    for found in map_concurrently(list_part, parts):
        builder.add_part(found)


def _run_in_order(tasks: Sequence[PartsTask[Any]], engine: Engine) -> Iterator[PackedListing]:
    done: dict[int, PackedListing] = {}
    expected = deque(task.first for task in tasks)
    for task, found in run_each(run_task, tasks, workers=engine):
        done[task.first] = found
        while expected and expected[0] in done:
            yield done.pop(expected.popleft())


def refuse_all_elsewhere(listing: Listing, where: Where) -> Listing:
    """Return the listing of a table or list of images; raise UsageError if not one of its images can be read."""
    if listing.inputs and all(one.problem for one in listing.inputs):
        count, first = len(listing.inputs), listing.inputs[0]
        raise UsageError(f"{printable(str(where))}: none of its {counted(count, 'image')} can be read: {first.problem}")
    return listing
