"""SourceSample, a sample as formats store it, and ListingBuilder, which numbers labels and writes extras as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import Damage, UsageError
from picstore.prepare.sources.input_table import InputTable, PackedInputs
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import Label, LabelFields, NoLabel, number_labels, quoted
from picstore.prepare.sources.metadata import OddValues, extra_as_json
from picstore.prepare.sources.source_file import printable
from picstore.prepare.sources.splits import split_of_word
from picstore.storage.location.resolve import Where, locate

_SEEN = 64  # fields that a message lists at most


@dataclass(slots=True)
class SourceSample:
    """One sample of a format; it becomes an Input once the labels of all samples are known.

    Attributes:
        label: value that :func:`picstore.prepare.sources.labels.to_label` classified.
        extra: all other fields, with any values; see :mod:`picstore.prepare.sources.metadata`.

    The other attributes are :class:`Input`'s.
    """

    name: str
    path: str
    offset: int = 0
    size: int = -1
    label: Label = None
    extra: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    reader: Callable[[Input], bytes] | None = None
    key: bytes = b""
    attachments: tuple[tuple[str, Input], ...] = ()


# What the user is told of a source: by text how often it was found, and the least example.
Notes = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class PackedListing:
    """Inputs, labels, attachments and notes of the parts that a task lists.

    Attributes:
        inputs: of all parts of the task.
        labels: by the labels of ``inputs``, with the number of samples that have each; none if the labels of
            ``inputs`` are numbers of classes.
        attachments: names of attachments.
        fields: names of some fields of samples.
        splits: values of the field ``split`` that are splits.
        notes: what the user is told.
        odd: values of extras that were changed.
    """

    inputs: PackedInputs
    labels: dict[Label, int]
    attachments: tuple[str, ...]
    fields: tuple[str, ...]
    splits: tuple[str, ...]
    notes: Notes
    odd: OddValues


class ListingBuilder:
    """Inputs of a source in their order, as they are found.

    Attributes:
        notes: what the user is told.
    """

    def __init__(self) -> None:
        self.notes: Notes = {}
        self._odd = OddValues()
        self._inputs = InputTable()
        self._turns: dict[Label, int] = {}  # of labels, in the order in which they come
        self._counts: list[int] = []  # of readable samples, by turn
        self._packed: dict[int, dict[Label, int]] = {}  # counts of labels by group
        self._attachments: dict[str, None] = {}
        self._fields: dict[str, None] = {}
        self._splits: dict[str, None] = {}  # in the field of that name

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, item: Input | SourceSample) -> None:
        """Add an input, whose label is the number of a class, or a sample."""
        if isinstance(item, SourceSample):
            turn = self._turns.setdefault(item.label, len(self._turns))
            if turn == len(self._counts):
                self._counts.append(0)
            self._counts[turn] += not item.problem
            if len(self._fields) < _SEEN:
                self._fields.update(dict.fromkeys(item.extra))
            if isinstance(split := item.extra.get("split"), str) and split_of_word(split):
                self._splits[split] = None
            item = _to_input(item, turn, self._odd)
        self._inputs.append(item)
        for name, _ in item.attachments:
            self._attachments[name] = None

    def add_notes(self, notes: Notes) -> None:
        """Add what the user is told."""
        for text, (count, example) in notes.items():
            before, least = self.notes.get(text, (0, example))
            self.notes[text] = before + count, min(least, example)

    def add_packed(self, found: PackedListing) -> None:
        """Add what a task has found."""
        self._packed[self._inputs.add_packed(found.inputs)] = found.labels
        self._attachments.update(dict.fromkeys(found.attachments))
        self._fields.update(dict.fromkeys(found.fields))
        self._splits.update(dict.fromkeys(found.splits))
        self.add_notes(found.notes)
        self._odd.update(found.odd)

    def pack(self) -> PackedListing:
        """Pack what was found."""
        counts, attachments = self._label_counts(), tuple(self._attachments)
        fields, splits = tuple(self._fields), tuple(self._splits)
        return PackedListing(self._inputs.pack(), counts, attachments, fields, splits, self.notes, self._odd)

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
        """Build the listing, and number the labels of samples; see :func:`number_labels`.

        Args:
            where: the source, for messages.
            classes: names by label, if the source has them.
            remarks: messages for the user.
            labels: how the label's field was chosen, or its name that the user gave.
            no_label: why no sample has a label, if none has; by default what the samples' fields are called.

        Raises:
            UsageError: no sample has a label in the field that the user named, or labels and classes contradict.
        """
        groups = {0: self._label_counts(), **self._packed}
        counts: Counter[Label] = Counter()
        for found in groups.values():
            counts.update(found)
        found_remarks = [*remarks, *(labels.remarks() if isinstance(labels, LabelFields) else ())]
        if len(self._splits) > 1:
            found_remarks.append(f"the field 'split' holds {', '.join(self._splits)}: all of them are taken")
        chosen = number_labels(counts, classes, where=where)
        if set(chosen.numbers.values()) == {-1} and not any(isinstance(label, NoLabel) for label in counts):
            found_remarks.append(no_label or self._no_labels(where, labels))
        for group, found in groups.items():
            if found:
                self._inputs.number_labels([chosen.numbers[label] for label in found], group=group)
        names = [printable(name) for name in chosen.names]
        all_remarks = [*found_remarks, *chosen.remarks, *self._odd.remarks()]
        return Listing(kind, self._inputs, names, tuple(self._attachments), all_remarks)

    def _no_labels(self, where: object, labels: LabelFields | str | None) -> str:
        """Tell that no sample has a label; UsageError if the user named a field that no sample has."""
        fields = quoted(self._fields)
        if isinstance(labels, LabelFields) and labels.chosen is not None:
            return f"no labels: all values of {labels.chosen!r} are missing"
        if isinstance(labels, str):
            raise UsageError(f"{where}: no sample has a value in the field {labels!r}; fields with values: {fields}")
        if not self._fields:
            return "no labels: there is no other column than the image's that has values"
        return f"no labels: none of the columns {fields} has a usual name of labels; name one with --label-field"


def build_listing(
    kind: str,
    samples: Iterable[SourceSample],
    *,
    where: object = "",
    classes: Sequence[str] = (),
    remarks: Iterable[str] = (),
    labels: LabelFields | str | None = None,
    no_label: str = "",
) -> Listing:
    """Build a listing of samples in their order; see :meth:`ListingBuilder.build`.

    ``classes`` and ``remarks`` are consumed after the samples, which may add to them.
    """
    builder = ListingBuilder()
    for sample in samples:
        builder.add(sample)
    return builder.build(kind, where=where, classes=classes, remarks=remarks, labels=labels, no_label=no_label)


def refuse_all_elsewhere(listing: Listing, where: Where) -> Listing:
    """Return the listing of a file that names images; UsageError if all of them lie elsewhere."""
    if listing.inputs and all(one.problem for one in listing.inputs):
        count, first = len(listing.inputs), listing.inputs[0]
        raise UsageError(f"{printable(str(where))}: none of its {count:,} images can be read: {first.problem}")
    return listing


def _to_input(sample: SourceSample, label: int, odd: OddValues) -> Input:
    extra = extra_as_json(sample.extra, odd, name=sample.name) if sample.extra else b""
    attachments, reader, key = sample.attachments, sample.reader, sample.key
    bounds = (sample.path, sample.offset, sample.size)
    return Input(sample.name, label, *bounds, sample.problem, extra, attachments=attachments, reader=reader, key=key)


def end_at_damage(samples: Iterable[SourceSample], where: Where, name: str = "") -> Iterator[SourceSample]:
    """Samples of one file; damage ends them with a sample whose ``problem`` tells it, so that no loss is silent."""
    try:
        yield from samples
    except Damage as error:
        position = f" at byte {error.offset:,}" if error.offset else ""
        file = locate(where)
        yield SourceSample(name or printable(file.name), str(file), problem=f"damaged{position}: {error.what}")
