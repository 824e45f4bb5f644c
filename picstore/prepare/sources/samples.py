"""SourceSample, a sample as formats store it, and build_listing, which numbers labels and writes extras as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from picstore.errors import Damage, UsageError
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.source_file import printable
from picstore.storage.format.record import extra_to_json
from picstore.storage.location.resolve import Where, locate

Label: TypeAlias = "int | str | None"
IMAGE_FIELDS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "images", "x", "data", "bytes", "image_bytes")
LABEL_FIELDS = ("label", "labels", "cls", "class", "class_id", "target", "category", "fine_label", "y", "class_name")

_INTEGER = re.compile(r"[+-]?\d{1,19}")


@dataclass(slots=True)
class SourceSample:
    """One sample of a format; it becomes an Input once the labels of all samples are known.

    Attributes:
        label: a number, a name, or None for unknown; a text of digits counts as a name here.
        extra: all other fields that JSON can hold.

    The other attributes are those of :class:`Input`.
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


def build_listing(
    kind: str,
    samples: Iterable[SourceSample],
    *,
    classes: Sequence[str] = (),
    remarks: Iterable[str] = (),
) -> Listing:
    """Build a listing of samples in their order.

    Args:
        classes: names by label, if the format has them. Otherwise labels that are names are numbered by sorted name,
            unless all of them are integers.
        remarks: messages for the user; consumed after the samples, which may add to them.
    """
    inputs: list[Input] = []
    labels: list[Label] = []
    interned: dict[str, str] = {}  # one object per name, however many samples have it
    attachments: dict[str, None] = {}
    for sample in samples:
        label = sample.label
        labels.append(interned.setdefault(label, label) if isinstance(label, str) else label)
        inputs.append(_to_input(sample))
        attachments.update(dict.fromkeys(name for name, _ in sample.attachments))
    numbers, names = _number_labels(labels)
    for k, label in enumerate(numbers):
        if label != -1:
            inputs[k] = replace(inputs[k], label=label)
    return Listing(kind, inputs, [printable(name) for name in classes or names], tuple(attachments), list(remarks))


def _to_input(sample: SourceSample) -> Input:
    extra, problem = b"", sample.problem
    try:
        extra = extra_to_json(sample.extra or None)
    except UsageError as error:
        problem = problem or str(error)
    return Input(
        sample.name,
        -1,
        sample.path,
        sample.offset,
        sample.size,
        problem,
        extra,
        attachments=sample.attachments,
        reader=sample.reader,
        key=sample.key,
    )


def _number_labels(labels: Sequence[Label]) -> tuple[list[int], list[str]]:
    """Labels as numbers, and class names if labels were names."""
    texts = {label for label in labels if isinstance(label, str)}
    if all(map(_INTEGER.fullmatch, texts)):
        return [-1 if label is None else int(label) for label in labels], []
    names = sorted({str(label) for label in labels if label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    return [-1 if label is None else numbers[str(label)] for label in labels], names


def to_label(value: Any) -> Label:
    """Convert a field's value to a label; UsageError unless it is an integer or a text."""
    if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise UsageError(f"{value!r} is no label: labels are integers or names")


def pop_label(extra: dict[str, Any], name: str | None) -> Label:
    """Remove the label from a sample's fields and return it; a value that is no label stays, and None is returned."""
    if name is None or name not in extra:
        return None
    try:
        label = to_label(extra[name])
    except UsageError:
        return None
    del extra[name]
    return label


def choose_field(
    given: str | None, fields: Collection[str], known: Sequence[str], *, what: str, path: object, must: bool = True
) -> str | None:
    """Choose the field that holds the image or the label.

    Args:
        given: the user's choice; None for the first of ``known`` among the fields, or else the only field.
        fields: candidates.
        known: usual names in lower case, the preferred first.
        what: "image" or "label", as in ``--image-field``.
        path: name of the source in messages.
        must: whether None is an error.

    Raises:
        UsageError: the user's choice is no candidate, or no field can be chosen.
    """
    if given is not None:
        if given not in fields:
            raise UsageError(f"{path} has no field {given!r} that can be the {what}; it has {_quoted(fields)}")
        return given
    by_lower = {name.lower(): name for name in reversed(list(fields))}
    found = next((by_lower[name] for name in known if name in by_lower), None)
    if found is None and must and len(fields) == 1:
        return next(iter(fields))
    if found is None and must:
        raise UsageError(f"which field of {path} is the {what}? Name it by --{what}-field; it has {_quoted(fields)}")
    return found


def _quoted(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def end_at_damage(samples: Iterable[SourceSample], where: Where, name: str = "") -> Iterator[SourceSample]:
    """Samples of one file; damage ends them with a sample whose ``problem`` tells it, so that no loss is silent."""
    try:
        yield from samples
    except Damage as error:
        position = f" at byte {error.offset:,}" if error.offset else ""
        file = locate(where)
        yield SourceSample(name or printable(file.name), str(file), problem=f"damaged{position}: {error.what}")


class SkippedFields(Counter[str]):
    """Counts of fields that records do not take over, by description."""

    def remarks(self) -> Iterator[str]:
        """One line per field, counted when the iterator is consumed: after all samples were read."""
        for what, count in sorted(self.items()):
            yield f"{what}: left out of {count:,} samples"


def json_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for damaged text, any other value, and NaN."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
