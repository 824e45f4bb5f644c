"""Labels of samples: which field is the label, and the rule by which values become labels and class names.

    value of a field ── to_label ──→ Label of a sample
    Labels of the whole listing, with their counts ── number_labels ──→ numbers, class names, remarks

All sources use this rule. Whether "3" is the number 3 or the name of a class is decided once, over all labels of a
listing (docs/sources.md).
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from picstore.errors import UsageError, counted
from picstore.prepare.sources.splits import split_of_word

# Usual names of a label field in lower case, the preferred name first.
LABEL_FIELDS = ("label", "labels", "cls", "class", "class_id", "target", "category", "fine_label", "y", "class_name")

_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d{1,9})?\s*", re.ASCII | re.IGNORECASE)
_MAX_DIGITS = 64  # largest number of characters of a string that may be a number
_BOOLEANS = {"false": 0, "true": 1}
# Labels, in lower case, that count as missing if all other labels of the source are numbers, else as class names.
_ABSENT = {"null", "none", "na", "n/a", "<na>", "\\n"}
_SHOWN = 12  # largest number of field names that a message shows


class NoLabel(enum.Enum):
    """Reason why a value is not a label. The value stays in the sample's extra."""

    NOT_INTEGER = "is a number that is not an integer of 64 bits"
    SEVERAL = "has several values"
    OTHER = "is neither a number nor a text"
    OTHER_FIELD = "is missing, and a field with another usual name is there"


@dataclass(frozen=True, slots=True)
class InFolder:
    """Folder of a sample without a label; it is the sample's class if no sample of the listing has a label."""

    path: str


# Label of a sample as the source states it; None if missing. A string such as "3" is a class number if all labels of
# the listing are numbers, else a class name.
Label: TypeAlias = "int | str | NoLabel | InFolder | None"


def to_label(value: Any) -> Label:
    """Return a value as a label: strings unchanged, 3.0 and true as integers, null, NaN and blank strings as None."""
    if isinstance(value, str):
        return None if value.strip().lower() in ("", "nan") else value
    if value is None or isinstance(value, bool):
        return None if value is None else int(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        value = int(value) if value.is_integer() else None
    if isinstance(value, (list, tuple)):
        return NoLabel.SEVERAL
    if value is None or isinstance(value, int):
        return value if value is not None and _fits(value) else NoLabel.NOT_INTEGER
    return NoLabel.OTHER


def _fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 63


def number_of_text(text: str) -> int | NoLabel | None:
    """Return the integer that a string states, NOT_INTEGER for any other number, None for a string such as a name."""
    if (boolean := _BOOLEANS.get(text.strip().lower())) is not None:
        return boolean
    if len(text) > _MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    number = Decimal(text.strip())
    if number.adjusted() > 20 or number != number.to_integral_value() or not _fits(int(number)):
        return NoLabel.NOT_INTEGER
    return int(number)


def take_label(extra: dict[str, Any], field: str | None) -> Label:
    """Return a sample's label, and remove the field from ``extra``; keep a value that is not a label, such as 1.5."""
    if field is None or field not in extra:
        return None
    label = to_label(extra[field])
    if not isinstance(number_of_text(label) if isinstance(label, str) else label, NoLabel):
        del extra[field]
    return label


def usual_field(fields: Collection[str], usual: Sequence[str]) -> str | None:
    """Return the field whose name, ignoring case and outer blanks, comes first in ``usual``; None if no field does."""
    by_lower = {name.strip().lower(): name for name in reversed(list(fields))}
    return next((by_lower[name] for name in usual if name in by_lower), None)


class LabelFields:
    """Choice of the label field in each file of a source.

    Args:
        given: label field that the user named; None to choose a usual name.
        where: source that messages name.
    """

    def __init__(self, given: str | None, where: object) -> None:
        self._given, self._where = given, where
        self._chosen: Counter[str | None] = Counter()
        self._fields: dict[str, None] = {}

    def choose(self, fields: Collection[str], *, only: Sequence[str] = ()) -> str | None:
        """Return the label field: the user's, else one with a usual name, else the only field in ``only``, or None."""
        chosen = self._given if self._given in fields else None
        if self._given is None:
            chosen = usual_field(fields, LABEL_FIELDS) or (only[0] if len(only) == 1 else None)
        self._chosen[chosen] += 1
        self._fields.update(dict.fromkeys(fields))
        return chosen

    @property
    def chosen(self) -> str | None:
        """Label field of the first file that has one; None if no file has a label field."""
        return next(filter(None, self._chosen), None)

    def remarks(self) -> Iterator[str]:
        """Yield a message if files have different label fields; raise UsageError if no file has the user's field."""
        if self._given is not None and self._given not in self._chosen and self._chosen:
            listed = quoted(self._fields)
            raise UsageError(f"{self._where} has no field {self._given!r} that can be the label; it has {listed}")
        if len(self._chosen) > 1:
            each = [
                f"{name!r} of {counted(count, 'file')}" if name is not None else f"no field of {counted(count, 'file')}"
                for name, count in sorted(self._chosen.items(), key=lambda pair: (pair[0] is None, pair[0]))
            ]
            yield f"labels: read from {', '.join(each)}"


class RowLabels:
    """Choice of the label field in a file whose samples can have different fields.

    The label field is the first field with a usual name that occurs in any sample. But a sample with fields named in
    ``always`` takes its label from the first of these names that it has.
    """

    def __init__(self, given: str | None, usual: Sequence[str] = LABEL_FIELDS, *, always: Sequence[str] = ()) -> None:
        self._given, self._usual, self._always = given, usual, always
        self._field = given

    def take(self, extra: dict[str, Any]) -> Label:
        """Return a sample's label and remove the label field, as :func:`take_label` does."""
        if self._given is None:
            for name in self._always:
                if name in extra:
                    return take_label(extra, name)
        if self._given is None and self._field not in extra:
            found = usual_field(extra, self._usual)
            if self._field is not None:
                return None if found is None else NoLabel.OTHER_FIELD
            self._field = found
        return take_label(extra, self._field)


def quoted(names: Collection[str]) -> str:
    """Return the first _SHOWN names, quoted and separated by commas, for a message."""
    shown = [repr(name) for name in list(names)[:_SHOWN]]
    return ", ".join(shown + ["…"] * (len(names) > _SHOWN)) or "none"


@dataclass(frozen=True, slots=True)
class Numbering:
    """Class number of each label (−1 for labels without a class), class names by number, and messages for the user."""

    numbers: dict[Label, int]
    names: list[str]
    remarks: list[str]


def number_labels(counts: Mapping[Label, int], classes: Sequence[str], *, where: object = "") -> Numbering:
    """Return the class number of each label of a listing.

    Labels are class numbers if all are numbers, such as 3 or "3", and no string is in ``classes``. Otherwise labels are
    class names: those in ``classes`` keep their number there, the rest follow in sorted order.

    Args:
        counts: number of samples with each label.
        classes: class names by number, if the source states them; integers are then always class numbers.
        where: source that messages name.

    Raises:
        UsageError: a label is a number that no class has, or ``classes`` has the name of a label twice.
    """
    stated = [label for label in counts if isinstance(label, (int, str))]
    if not stated:
        return _number_folders(counts) if not classes else Numbering(dict.fromkeys(counts, -1), [*classes], [])
    of_text = {label: number_of_text(label) for label in stated if isinstance(label, str)}
    others = {text for text, number in of_text.items() if number is None}
    absent = {text for text in others if text.strip().lower() in _ABSENT}
    if others == absent and len(absent) < len(stated) and not others & set(classes):
        others = set()
    numbers: dict[Label, int] = dict.fromkeys(counts, -1)
    if others or not of_text.keys().isdisjoint(classes):
        names, remarks = _number_names(numbers, stated, classes, others, where)
    else:
        names, remarks = list(classes), []
        found = {label: label if isinstance(label, int) else of_text[label] for label in stated}
        numbers |= {label: number for label, number in found.items() if isinstance(number, int)}
        fractions = {text for text, number in of_text.items() if isinstance(number, NoLabel)}
        not_integers = counts.get(NoLabel.NOT_INTEGER, 0) + sum(counts[text] for text in fractions)
        counts = {label: count for label, count in counts.items() if label not in fractions}
        counts[NoLabel.NOT_INTEGER] = not_integers
    if names:
        _refuse_outside(numbers, names, where)
    return Numbering(numbers, names, [*remarks, *_unlabelled(counts, numbers)])


def _number_names(
    numbers: dict[Label, int], stated: Sequence[int | str], classes: Sequence[str], others: set[str], where: object
) -> tuple[list[str], list[str]]:
    """Take the labels ``stated`` as class names, and write their class numbers to ``numbers``.

    Return all class names, and messages for the user.
    """
    names = [*classes]
    texts = {str(label) for label in stated if isinstance(label, str) or not classes}
    names += sorted(texts - set(classes))
    positions = {name: number for number, name in reversed(list(enumerate(names)))}
    twice = {name for name, count in Counter(classes).items() if count > 1}
    if ambiguous := sorted(texts & twice):
        raise UsageError(f"{where}: two classes are called {ambiguous[0]!r}; rename one of them")
    for label in stated:
        numbers[label] = label if classes and isinstance(label, int) else positions[str(label)]
    if classes:
        return names, []
    count = "1 class name" if len(names) == 1 else f"{len(names):,} class names"
    remark = f"labels: {count}, such as {names[0]!r}, numbered by sorted name"
    if len(others) < len(texts) and others:
        number = min(texts - others)
        remark += f"; numbers such as {number!r} are names too, since {min(others)!r} is not a number"
    return names, [remark]


def _refuse_outside(numbers: Mapping[Label, int], names: Sequence[str], where: object) -> None:
    outside = [number for number in numbers.values() if not -1 <= number < len(names)]
    if outside:
        worst = max(outside, key=abs)
        raise UsageError(
            f"{where}: the label {worst} is outside of the {counted(len(names), 'class')}; "
            f"give labels of 0 to {len(names) - 1}"
        )


def _number_folders(counts: Mapping[Label, int]) -> Numbering:
    """Number the samples' classes: names at the first path component in which the samples' folders differ.

    If no component differs, all samples get the class number −1.
    """
    paths: dict[Label, tuple[str, ...]] = {
        label: tuple(label.path.split("/")) for label in counts if isinstance(label, InFolder)
    }
    folders = _differing_parts(paths)
    # If the differing components name splits, the folders inside the splits are the classes.
    if all(map(split_of_word, folders.values())):
        folders = _differing_parts(
            {label: paths[label][paths[label].index(part) + 1 :] for label, part in folders.items()}
        )
    names = sorted(set(folders.values()))
    if len(names) < 2:
        return Numbering(dict.fromkeys(counts, -1), [], _unlabelled(counts, {}))
    numbers = {label: names.index(folders[label]) if label in folders else -1 for label in counts}
    remark = f"labels: the {len(names):,} folders, such as {names[0]!r}, are the classes"
    return Numbering(numbers, names, [remark, *_unlabelled(counts, numbers)])


def _differing_parts(paths: Mapping[Label, tuple[str, ...]]) -> dict[Label, str]:
    """Return, by label, the label's path component at the first level where not all paths agree; skip empty paths."""
    there = {label: path for label, path in paths.items() if path and path[0]}
    common = 0
    while len({path[: common + 1] for path in there.values()}) == 1 and min(map(len, there.values())) > common + 1:
        common += 1
    return {label: path[common] for label, path in there.items()}


def _unlabelled(counts: Mapping[Label, int], numbers: Mapping[Label, int]) -> list[str]:
    total = sum(counts.values())
    reasons = {label: count for label, count in counts.items() if isinstance(label, NoLabel) and count}
    remarks = [
        f"labels: the label of {counted(count, 'image')} {reason.value}; it stays in the extra, and the label is −1"
        for reason, count in reasons.items()
    ]
    missing = sum(count for label, count in counts.items() if numbers.get(label, -1) == -1) - sum(reasons.values())
    if 0 < missing < total:
        remarks.append(f"labels: {missing:,} of {counted(total, 'image')} have none, which is the label −1")
    return remarks
