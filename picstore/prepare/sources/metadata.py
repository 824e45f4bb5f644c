"""Metadata of samples as JSON: the rule for values that JSON cannot hold, and remarks on fields that are left out.

A value that JSON cannot hold never costs the image, the label or another field. A source puts values into the extra
unchanged, with strings decoded by :func:`decode_text`, and :func:`extra_as_json` converts the values:

    NaN, infinity, an integer of more than 4,300 digits    null
    text that is not UTF-8, half of a UTF-16 pair          U+FFFD in place of each byte or half
    bytes inside a list or object                          null
    lists and objects more than 64 levels deep             null
    date, time, decimal, UUID                              text
    NumPy's scalar or array                                number or list
    an extra that is too large for a record                without its largest fields
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from picstore.errors import UsageError, counted
from picstore.prepare.sources.lenient_json import MAX_DIGITS
from picstore.prepare.sources.source_file import printable
from picstore.storage.format.record import MAX_EXTRA, extra_to_json

# Largest nesting depth of an extra; deeper values become null, because JSON parsers fail at some hundred levels.
_MAX_DEPTH = 64
# Number of bytes that a sample's fields and the input's name must leave free in an extra of the largest size.
_ROOM = 1 << 10
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MAX_NAMED = 5  # largest number of fields that a message lists
_MAX_LINES = 20  # largest number of fields that have a message of their own
_TOO_LARGE = 10**MAX_DIGITS
_AS_TEXT = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)

_NUMBER, _TEXT, _BYTES, _DEEP, _KEY, _LARGE, _OTHER = (
    "numbers that are NaN, infinite or of more than 4,300 digits, null now",
    "texts that are not UTF-8, with U+FFFD for each damaged character now",
    "values that are bytes, null now",
    "values nested more than 64 levels deep, null now",
    "values left out, as their key is another key's text",
    "fields left out, as a record's metadata would take more than 16 MiB",
    "values of types that JSON does not have, texts now",
)


class OddValues(Counter[tuple[str, str]]):
    """Number of values that :func:`extra_as_json` changed, by (kind of change, field)."""

    def remarks(self) -> Iterator[str]:
        """Yield a message for each kind of change, with the number of changed values and the names of their fields."""
        for what in (_NUMBER, _TEXT, _BYTES, _DEEP, _KEY, _LARGE, _OTHER):
            fields = sorted(field for kind, field in self if kind == what)
            if fields:
                count = sum(self[what, field] for field in fields)
                more = f" and {len(fields) - _MAX_NAMED:,} more" if len(fields) > _MAX_NAMED else ""
                yield f"{what}: {count:,} (in {', '.join(fields[:_MAX_NAMED])}{more})"


class SkippedFields(Counter[str]):
    """Counter of fields that records leave out: for each field, described for messages, the number of samples."""

    def remarks(self) -> Iterator[str]:
        """Yield messages on fields that were left out; iterate only after all samples were read.

        Only the 20 most frequent fields have their own message, because file names with dots may give many fields.
        """
        for what, count in sorted(self.most_common(_MAX_LINES)):
            yield f"{what}: left out of {counted(count, 'sample')}"
        if others := len(self) - _MAX_LINES if len(self) > _MAX_LINES else 0:
            count = self.total() - sum(count for _, count in self.most_common(_MAX_LINES))
            yield f"{counted(others, 'other field')}: left out of {counted(count, 'sample')}"

    def merge(self, extra: dict[str, Any], inner: dict[str, Any]) -> None:
        """Add the members of the object ``inner`` to ``extra``, and count the fields of ``extra`` that are replaced."""
        for name in extra.keys() & inner.keys():
            self[f"field {printable(name)}, which an inner object has too"] += 1
        extra |= inner


def decode_text(data: bytes) -> str:
    """Decode UTF-8; bytes that are not UTF-8 become surrogates, which :func:`extra_as_json` replaces and counts."""
    return data.decode("utf-8", "surrogateescape")


def decode_if_text(data: bytes) -> str | None:
    """Decode text by :func:`decode_text`; return None if the bytes are binary.

    Valid UTF-8 is text. So are bytes without control characters if at most a quarter is not UTF-8, such as a caption in
    Latin-1.
    """
    text = decode_text(data)
    invalid = len(_SURROGATE.findall(text))
    return None if invalid and (4 * invalid > len(text) or _CONTROL.search(text)) else text


def extra_as_json(extra: dict[str, Any], odd: OddValues, *, name: str = "") -> bytes:
    """Serialize a sample's fields as JSON for a record; return empty bytes if there are no fields.

    Args:
        odd: counter, to which values that JSON cannot hold are added.
        name: name of the input, which counts toward the extra's size limit.
    """
    limit = MAX_EXTRA - _ROOM - len(json.dumps(name))
    try:
        text = extra_to_json(extra or None)
        if len(text) <= limit and text.count(b"[") + text.count(b"{") <= _MAX_DEPTH:
            return text
    except UsageError:
        pass
    cleaned = _clean_members(extra, odd, "", 1)
    sizes = {field: len(json.dumps({field: value}, ensure_ascii=False).encode()) for field, value in cleaned.items()}
    for field in sorted(sizes, key=lambda field: -sizes[field]):
        if sum(sizes.values()) <= limit:
            break
        odd[_LARGE, _shown(field)] += 1
        del cleaned[field], sizes[field]
    return extra_to_json(cleaned or None)


def _shown(field: str) -> str:
    return field if len(field) <= 40 else field[:39] + "…"


def _clean(value: Any, odd: OddValues, field: str, depth: int) -> Any:
    """Return a copy of a value that JSON can hold; ``depth`` is the value's nesting depth, 1 for the extra itself."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, str, int, float)):
        return _clean_scalar(value, odd, field)
    if isinstance(value, (dict, list, tuple, set, frozenset)):
        if depth > _MAX_DEPTH:
            odd[_DEEP, field] += 1
            return None
        if isinstance(value, dict):
            return _clean_members(value, odd, field, depth)
        return [_clean(inner, odd, field, depth + 1) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        odd[_BYTES, field] += 1
        return None
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        return _clean_scalar(math.nan, odd, field)
    if not isinstance(value, _AS_TEXT):
        odd[_OTHER, field] += 1
    return _SURROGATE.sub("\ufffd", str(value))


def _clean_scalar(value: str | float | None, odd: OddValues, field: str) -> Any:
    if isinstance(value, str):
        found = _SURROGATE.sub("\ufffd", value)
        odd.update([(_TEXT, field)] if found != value else [])
        return found
    if value is None or (abs(value) < _TOO_LARGE if isinstance(value, int) else math.isfinite(value)):
        return value
    odd[_NUMBER, field] += 1
    return None


def _clean_members(members: dict[Any, Any], odd: OddValues, field: str, depth: int) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for key, value in members.items():
        text = _SURROGATE.sub("\ufffd", decode_text(key) if isinstance(key, bytes) else str(key))
        inside = field or _shown(text)
        odd.update([(_TEXT, inside)] if isinstance(key, str) and text != key else [])
        if text in cleaned:
            odd[_KEY, inside] += 1
        else:
            cleaned[text] = _clean(value, odd, inside, depth + 1)
    return cleaned
