"""SourceSample, a sample as formats store it, and ListingBuilder, which numbers labels and writes extras as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from statistics import median
from typing import Any, TypeVar

from picstore.errors import Damage, PicstoreError, UsageError
from picstore.prepare.sources.input_table import InputTable, InputView, PackedInputs
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import Label, LabelFields, NoLabel, number_labels, quoted
from picstore.prepare.sources.metadata import OddValues, extra_as_json
from picstore.prepare.sources.source_file import file_version, printable
from picstore.prepare.sources.splits import split_of_word
from picstore.storage.annotations import FIELDS
from picstore.storage.location.resolve import Location, Where, locate

_SEEN = 64  # fields that a message lists at most
_MAX_MISSING = 1 << 24  # missing samples of a file, beyond which the stated count is not believed
_MAX_NAMED = 5  # files in a remark
T = TypeVar("T", bound="Input | SourceSample")


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
    frame: tuple[int, int] | None = None
    lost: int = 0
    targets: str = ""
    version: str = ""


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
        damaged: number of inputs whose file has lost an unknown number of samples.
        alike: counts of metadata that is called as targets are.
    """

    inputs: PackedInputs
    labels: dict[Label, int]
    attachments: tuple[str, ...]
    fields: tuple[str, ...]
    splits: tuple[str, ...]
    notes: Notes
    odd: OddValues
    damaged: int
    alike: Counter[str]


class ListingBuilder:
    """Inputs of a source in their order, as they are found.

    Attributes:
        notes: what the user is told.
    """

    def __init__(self) -> None:
        self.notes: Notes = {}
        self._odd = OddValues()
        self._damaged = 0  # files that have lost an unknown number of samples
        self._inputs = InputTable()
        self._turns: dict[Label, int] = {}  # of labels, in the order in which they come
        self._counts: list[int] = []  # of readable samples, by turn
        self._packed: dict[int, dict[Label, int]] = {}  # counts of labels by group
        self._attachments: dict[str, None] = {}
        self._fields: dict[str, None] = {}
        self._splits: dict[str, None] = {}  # in the field of that name
        self._alike: Counter[str] = Counter()  # fields that are called as targets are

    def __len__(self) -> int:
        return len(self._inputs)

    def add(self, item: Input | SourceSample) -> None:
        """Add an input, whose label is the number of a class, or a sample."""
        if isinstance(item, SourceSample):
            turn = self._turns.setdefault(item.label, len(self._turns))
            if turn == len(self._counts):
                self._counts.append(0)
            self._counts[turn] += not item.problem
            if not item.targets:
                self._alike.update(name for name in FIELDS if name in item.extra)
            if len(self._fields) < _SEEN:
                self._fields.update(dict.fromkeys(item.extra))
            if isinstance(split := item.extra.get("split"), str) and split_of_word(split):
                self._splits[split] = None
            item = _to_input(item, turn, self._odd)
        self._inputs.append(item)
        self._damaged += item.lost > 0
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
        self._damaged += found.damaged
        self._alike.update(found.alike)

    def pack(self) -> PackedListing:
        """Pack what was found."""
        counts, attachments = self._label_counts(), tuple(self._attachments)
        fields, splits = tuple(self._fields), tuple(self._splits)
        inputs = self._inputs.pack()
        told = self.notes, self._odd, self._damaged, self._alike
        return PackedListing(inputs, counts, attachments, fields, splits, *told)

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
        inputs, losses = self._estimate_losses()
        all_remarks = [*found_remarks, *chosen.remarks, *self._odd.remarks(), *losses]
        return Listing(kind, inputs, names, tuple(self._attachments), all_remarks, alike=dict(self._alike))

    def _estimate_losses(self) -> tuple[Sequence[Input], list[str]]:
        """Estimate what damaged files lost by the other files; returns the inputs with the estimates, and a remark."""
        inputs: Sequence[Input] = self._inputs
        if not self._damaged:
            return inputs, []
        estimates = _estimate_by_others(inputs)
        inputs = InputView(inputs, change=lambda one: replace(one, lost=estimates[one.path]) if one.lost else one)
        files = ", ".join(printable(PurePath(path).name) for path in sorted(estimates)[:_MAX_NAMED])
        more = f" and {len(estimates) - _MAX_NAMED:,} more" if len(estimates) > _MAX_NAMED else ""
        lost = sum(estimates.values())
        return inputs, [f"damaged files have lost an unknown number of samples, about {lost:,}: {files}{more}"]

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
    return Input(
        sample.name,
        label,
        sample.path,
        sample.offset,
        sample.size,
        sample.problem,
        extra,
        attachments=sample.attachments,
        reader=sample.reader,
        key=sample.key,
        frame=sample.frame,
        lost=sample.lost,
        targets=sample.targets,
        version=sample.version,
    )


def end_at_damage(
    samples: Iterable[T],
    where: Where,
    name: str = "",
    *,
    count: int | None = None,
    first: int = 0,
    may_be_empty: bool = False,
    version: str | None = None,
) -> Iterator[T | SourceSample]:
    """Samples of one file. Damage ends them with samples whose ``problem`` tells it, so that no loss is silent.

    Samples keep the version of the file, so that nothing is read from another file that takes its place.

    Args:
        name: of the file in the ledger; by default its own.
        count: samples that the file or its index states. Each that is missing is a sample of its own. Without it one
            sample stands for all that the damage cost, and its ``lost`` is an estimate.
        first: number of the first sample in the names of missing ones.
        may_be_empty: whether a file without samples is not damaged.
        version: version of the file, if it was opened before; by default the one that it has now.
    """
    file, found, problem, offset = locate(where), 0, "", 0
    version = file_version(file) if version is None else version
    try:
        for sample in samples:
            found += 1
            yield _of_version(sample, version)
    except Damage as error:
        problem, offset = describe_damage(error), error.offset
    if found == count:
        return
    name = name or printable(file.name)
    if count is not None and found < count:
        problem = problem or f"damaged: {found:,} samples are there, and {count:,} are stated"
        missing = range(found, count if count - found <= _MAX_MISSING else found)
        for number in missing:
            yield SourceSample(f"{name}/{first + number}", str(file), problem=problem)
        if missing:
            return
    if not found and not may_be_empty:
        problem = problem or "damaged: it holds no samples"
    if problem:
        lost = estimate_loss(file, found, offset) if count is None else max(1, count - found)
        yield SourceSample(name, str(file), problem=problem, lost=lost)


def _of_version(sample: T, version: str) -> T:
    """Let a sample, and attachments in the same file, keep the file's version."""
    attachments = sample.attachments
    if attachments:
        attachments = tuple(
            (name, replace(one, version=version) if one.path == sample.path else one) for name, one in attachments
        )
    if isinstance(sample, Input):
        return replace(sample, attachments=attachments, version=version)
    sample.attachments, sample.version = attachments, version
    return sample


def describe_damage(error: Damage) -> str:
    """Describe damage as the ``problem`` of a sample."""
    position = f" at byte {error.offset:,}" if error.offset else ""
    return f"damaged{position}: {error.what}"


def or_damaged(make: Callable[..., SourceSample], name: str, path: str, *arguments: Any) -> SourceSample:
    """Make a sample, or one whose ``problem`` tells of its damage: the next one begins where the format says."""
    try:
        return make(*arguments)
    except Damage as error:
        return SourceSample(name, path, problem=describe_damage(error))


def estimate_loss(file: Location, found: int, offset: int) -> int:
    """Estimate the samples behind damage at an offset, if ``found`` are before it.

    Samples are taken to be of one size. The end of a file that was cut off tells nothing; then as many are taken to be
    lost as were found.
    """
    try:
        rest = file.size() - offset
    except PicstoreError:
        rest = 0
    return max(1, found * rest // offset if offset > 0 and rest > 0 else found)


def _estimate_by_others(inputs: Sequence[Input]) -> dict[str, int]:
    """Estimate by path the samples that damaged files lost, from what undamaged files of the same suffix hold."""
    counts = Counter(one.path for one in inputs)
    damaged = {one.path: one.lost for one in inputs if one.lost}
    estimates: dict[str, int] = {}
    for path, lost in damaged.items():
        suffix = PurePath(path).suffix
        others = [count for other, count in counts.items() if other not in damaged and PurePath(other).suffix == suffix]
        estimates[path] = max(1, int(median(others)) - counts[path]) if others else lost
    return estimates
