"""From samples, as formats hold them, to a listing: labels by number or by name, everything else into the extra."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.sources.inputs import Input, Listing, entries_of, printable
from picstore.storage.format.record import extra_to_json
from picstore.storage.location.resolve import Location, Where, locate, many

Label: TypeAlias = "int | str | None"
IMAGE_FIELDS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "images", "x", "data", "bytes", "image_bytes")
LABEL_FIELDS = ("label", "labels", "cls", "class", "class_id", "target", "category", "fine_label", "y", "class_name")

_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_MAX_NAMES = 1 << 20  # that a pattern with braces may stand for
_WHOLE = re.compile(r"[+-]?\d{1,19}")


@dataclass(slots=True)
class Sample:
    """One sample of a format: what becomes an input once the labels of all are known.

    Attributes:
        label: a number, a name, or None for unknown; a text that may be either is a name here.
        extra: what else there is of it.
        others: as of :class:`Input`.
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


def listing_of(
    kind: str,
    samples: Iterable[Sample],
    *,
    classes: Sequence[str] = (),
    remarks: Iterable[str] = (),
) -> Listing:
    """A listing of samples in their order.

    Args:
        classes: names by label, where the format has them. Without, labels that are names are numbered by sorted name,
            unless all of them are integers.
        remarks: what the user should hear; taken after the samples, whose walk may add to it.
    """
    inputs: list[Input] = []
    labels: list[Label] = []
    known: dict[str, str] = {}  # one object a name, however many samples have it
    names: dict[str, None] = {}
    for sample in samples:
        label = sample.label
        labels.append(known.setdefault(label, label) if isinstance(label, str) else label)
        inputs.append(_as_input(sample))
        names.update(dict.fromkeys(name for name, _ in sample.attachments))
    numbers, found = _number(labels)
    for k, label in enumerate(numbers):
        if label != -1:
            inputs[k] = replace(inputs[k], label=label)
    return Listing(kind, inputs, [printable(name) for name in classes or found], tuple(names), list(remarks))


def _as_input(sample: Sample) -> Input:
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


def _number(labels: Sequence[Label]) -> tuple[list[int], list[str]]:
    """Labels as numbers, and the names of the classes if they were names."""
    texts = {label for label in labels if isinstance(label, str)}
    if all(map(_WHOLE.fullmatch, texts)):
        return [-1 if label is None else int(label) for label in labels], []
    names = sorted({str(label) for label in labels if label is not None})
    place = {name: number for number, name in enumerate(names)}
    return [-1 if label is None else place[str(label)] for label in labels], names


def as_label(value: Any) -> Label:
    """A value of a format as a label; UsageError for what is neither integer nor text."""
    if value is None or (isinstance(value, (int, str)) and not isinstance(value, bool)):
        return value
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise UsageError(f"{value!r} is no label: labels are integers or names")


def take_label(extra: dict[str, Any], name: str | None) -> Label:
    """Take a sample's label out of its fields; what is no label stays there."""
    if name is None or name not in extra:
        return None
    try:
        label = as_label(extra[name])
    except UsageError:
        return None
    del extra[name]
    return label


def choose(
    given: str | None, fields: Collection[str], known: Sequence[str], *, what: str, path: object, must: bool = True
) -> str | None:
    """The field of a format that holds the image or the label.

    Args:
        given: the user's choice, None for ours: the first of ``known`` that there is, or else the only field.
        fields: those that may be it.
        what: "image" or "label", as in ``--image-field``.
        path: what messages call the source.
        must: whether there must be one.

    Raises:
        UsageError: there is none, or not the one that was asked for.
    """
    if given is not None:
        if given not in fields:
            raise UsageError(f"{path} has no field {given!r} that can be the {what}; it has {_list(fields)}")
        return given
    by_lower = {name.lower(): name for name in reversed(list(fields))}
    found = next((by_lower[name] for name in known if name in by_lower), None)
    if found is None and must and len(fields) == 1:
        return next(iter(fields))
    if found is None and must:
        raise UsageError(f"which field of {path} is the {what}? Name it by --{what}-field; it has {_list(fields)}")
    return found


def _list(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def until_damaged(samples: Iterable[Sample], place: Where, name: str = "") -> Iterator[Sample]:
    """The samples of one file; where it is damaged they end in one that says so, and nothing is lost silently."""
    try:
        yield from samples
    except Damage as error:
        at = f" at byte {error.offset:,}" if error.offset else ""
        file = locate(place)
        yield Sample(name or printable(file.name), str(file), problem=f"damaged{at}: {error.what}")


class LeftOut(Counter[str]):
    """Counts fields that no record takes over, by why: the remarks of a listing."""

    def remarks(self) -> Iterator[str]:
        """A line each, when they are asked for: after the samples were walked through."""
        for what, count in sorted(self.items()):
            yield f"{what}: left out of {count:,} samples"


def json_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, or None for anything else: damaged text, another value, NaN."""
    try:
        value = _DECODER.decode(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def files_of(place: Location, *suffixes: str) -> list[Location]:
    """The files that a place stands for: itself; those of a folder that end so; or what braces in it expand to.

    Raises:
        NotADataset: there is nothing of the kind.
    """
    if place.is_folder():
        found = [place / entry.name for entry in entries_of(place) if entry.name.lower().endswith(suffixes)]
        if not found:
            raise NotADataset(f"{place} holds no files *{' or *'.join(suffixes)}")
        return found
    files = [place] if place.exists() else [locate(name) for name in expand(str(place))]
    for file, there in zip(files, many(lambda file: file.is_file(), files), strict=True):
        if not there:
            raise NotADataset(f"{file} is not a file" if file.exists() else f"{file} does not exist")
    return files


def expand(pattern: str) -> list[str]:
    """Names by a shell's braces: ``a-{000..003}.tar``, ``{train,val}-0.tar``; UsageError beyond a million."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last, words = match.groups()
    if words is not None:
        middles = words.split(",")
    else:
        if abs(int(last) - int(first)) > _MAX_NAMES:
            raise UsageError(f"{pattern} stands for more than {_MAX_NAMES:,} files")
        step = 1 if int(last) >= int(first) else -1
        width = len(first) if first.startswith("0") else 1
        middles = [f"{number:0{width}d}" for number in range(int(first), int(last) + step, step)]
    rest = expand(pattern[match.end() :])
    if len(middles) * len(rest) > _MAX_NAMES:
        raise UsageError(f"{pattern} stands for more than {_MAX_NAMES:,} files")
    return [pattern[: match.start()] + middle + tail for middle, tail in itertools.product(middles, rest)]
