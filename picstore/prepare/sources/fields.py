"""Fields of samples: choose which hold the image and the label, convert labels, and count skipped fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

from picstore.errors import UsageError
from picstore.prepare.sources.source_file import printable

Label: TypeAlias = "int | str | None"
_MAX_REMARKS = 20  # on fields
# Usual names in lower case, the preferred first.
IMAGE_FIELDS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "images", "x", "data", "bytes", "image_bytes")
LABEL_FIELDS = ("label", "labels", "cls", "class", "class_id", "target", "category", "fine_label", "y", "class_name")


def choose_image(given: str | None, fields: Collection[str], path: object, usual: Sequence[str] = IMAGE_FIELDS) -> str:
    """Choose the image's field: the user's choice, the first of the usual names, or the only field.

    UsageError if the user's choice is no field, or no field can be chosen; the message names the source ``path``.
    """
    found = _given_or_usual("image", given, fields, path, usual)
    if found is None and len(fields) == 1:
        return next(iter(fields))
    if found is None:
        raise UsageError(f"which field of {path} is the image? Name it by --image-field; it has {_quoted(fields)}")
    return found


def choose_label(
    given: str | None, fields: Collection[str], path: object, usual: Sequence[str] = LABEL_FIELDS
) -> str | None:
    """Choose the label's field as :func:`choose_image` does; None if no field has a usual name."""
    return _given_or_usual("label", given, fields, path, usual)


def _given_or_usual(
    what: str, given: str | None, fields: Collection[str], path: object, usual: Sequence[str]
) -> str | None:
    if given is not None:
        if given not in fields:
            raise UsageError(f"{path} has no field {given!r} that can be the {what}; it has {_quoted(fields)}")
        return given
    by_lower = {name.lower(): name for name in reversed(list(fields))}
    return next((by_lower[name] for name in usual if name in by_lower), None)


def _quoted(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


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


class SkippedFields(Counter[str]):
    """Counts of fields that records do not take over, by description."""

    def remarks(self) -> Iterator[str]:
        """One line per field, counted when the iterator is consumed: after all samples were read.

        Of many fields, such as names of files that have several dots, the most frequent have lines of their own.
        """
        for what, count in sorted(self.most_common(_MAX_REMARKS)):
            yield f"{what}: left out of {count:,} samples"
        if others := len(self) - _MAX_REMARKS if len(self) > _MAX_REMARKS else 0:
            count = self.total() - sum(count for _, count in self.most_common(_MAX_REMARKS))
            yield f"{others:,} other fields: left out of {count:,} samples"

    def merge(self, extra: dict[str, Any], inner: dict[str, Any]) -> None:
        """Add the members of an inner object to a sample's fields, and count fields that give way to members."""
        for name in extra.keys() & inner.keys():
            self[f"field {printable(name)}, which an inner object has too"] += 1
        extra |= inner
