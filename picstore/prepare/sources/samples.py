"""SourceSample, a sample as formats store it, and ListingBuilder, which numbers labels and writes extras as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import Damage, UsageError
from picstore.prepare.sources.fields import Label
from picstore.prepare.sources.input_table import InputTable, PackedInputs
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.metadata import OddValues, extra_as_json
from picstore.prepare.sources.source_file import printable
from picstore.storage.location.resolve import Where, locate

_INTEGER = re.compile(r"[+-]?\d{1,19}")


@dataclass(slots=True)
class SourceSample:
    """One sample of a format; it becomes an Input once the labels of all samples are known.

    Attributes:
        label: a number, a name, or None for unknown; a text of digits counts as a name here.
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
        labels: by the labels of ``inputs``; none if these are numbers of classes.
        attachments: names of attachments.
        notes: what the user is told.
        odd: values of extras that were changed.
    """

    inputs: PackedInputs
    labels: tuple[Label, ...]
    attachments: tuple[str, ...]
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
        self._packed: dict[int, tuple[Label, ...]] = {}  # labels by group
        self._attachments: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, item: Input | SourceSample) -> None:
        """Add an input, whose label is the number of a class, or a sample."""
        if isinstance(item, SourceSample):
            item = _to_input(item, self._turns.setdefault(item.label, len(self._turns)), self._odd)
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
        self.add_notes(found.notes)
        self._odd.update(found.odd)

    def pack(self) -> PackedListing:
        """Pack what was found."""
        attachments = tuple(self._attachments)
        return PackedListing(self._inputs.pack(), tuple(self._turns), attachments, self.notes, self._odd)

    def build(self, kind: str, *, classes: Sequence[str] = (), remarks: Iterable[str] = ()) -> Listing:
        """Build the listing; labels of samples that are names are numbered by sorted name, unless all are integers.

        Args:
            classes: names by label, if the source has them.
            remarks: messages for the user.
        """
        groups = {0: tuple(self._turns), **self._packed}
        labels = list(dict.fromkeys(label for found in groups.values() for label in found))
        numbers, names = _number_labels(labels)
        number_of = dict(zip(labels, numbers, strict=True))
        for group, found in groups.items():
            if found:
                self._inputs.number_labels([number_of[label] for label in found], group=group)
        chosen = [printable(name) for name in classes or names]
        return Listing(kind, self._inputs, chosen, tuple(self._attachments), [*remarks, *self._odd.remarks()])


def build_listing(
    kind: str, samples: Iterable[SourceSample], *, classes: Sequence[str] = (), remarks: Iterable[str] = ()
) -> Listing:
    """Build a listing of samples in their order.

    Args:
        classes: names by label, if the format has them. Otherwise labels that are names are numbered by sorted name,
            unless all of them are integers.
        remarks: messages for the user; consumed after the samples, which may add to them.
    """
    builder = ListingBuilder()
    for sample in samples:
        builder.add(sample)
    return builder.build(kind, classes=classes, remarks=remarks)


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


def _number_labels(labels: Sequence[Label]) -> tuple[list[int], list[str]]:
    """Labels as numbers, and class names if labels were names."""
    texts = {label for label in labels if isinstance(label, str)}
    if all(map(_INTEGER.fullmatch, texts)):
        return [-1 if label is None else int(label) for label in labels], []
    names = sorted({str(label) for label in labels if label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    return [-1 if label is None else numbers[str(label)] for label in labels], names


def end_at_damage(samples: Iterable[SourceSample], where: Where, name: str = "") -> Iterator[SourceSample]:
    """Samples of one file; damage ends them with a sample whose ``problem`` tells it, so that no loss is silent."""
    try:
        yield from samples
    except Damage as error:
        position = f" at byte {error.offset:,}" if error.offset else ""
        file = locate(where)
        yield SourceSample(name or printable(file.name), str(file), problem=f"damaged{position}: {error.what}")
