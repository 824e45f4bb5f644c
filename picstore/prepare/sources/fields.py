"""Fields of samples: choose which holds the image, and count skipped fields."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.sources.labels import quoted, usual_field
from picstore.prepare.sources.source_file import printable

_MAX_REMARKS = 20  # on fields
# Usual names in lower case, the preferred first.
IMAGE_FIELDS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "images", "x", "data", "bytes", "image_bytes")


def choose_image(given: str | None, fields: Collection[str], path: object, usual: Sequence[str] = IMAGE_FIELDS) -> str:
    """Choose the image's field: the user's choice, the first of the usual names, or the only field.

    UsageError if the user's choice is no field, or no field can be chosen; the message names the source ``path``.
    """
    if given is not None:
        if given not in fields:
            raise UsageError(f"{path} has no field {given!r} that can be the image; it has {quoted(fields)}")
        return given
    found = usual_field(fields, usual)
    if found is None and len(fields) == 1:
        return next(iter(fields))
    if found is None:
        raise UsageError(f"which field of {path} is the image? Name it by --image-field; it has {quoted(fields)}")
    return found


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
