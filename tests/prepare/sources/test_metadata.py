"""Values of metadata that JSON cannot hold."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.metadata import OddValues, decode_if_text, decode_text, extra_as_json
from picstore.storage.format.record import MAX_EXTRA, extra_to_json


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


ODD = [
    (math.nan, None, "null now: 1 (in odd)"),
    (-math.inf, None, "null now: 1 (in odd)"),
    (10**5000, None, "4,300 digits, null now: 1"),
    (decimal.Decimal("NaN"), None, "null now: 1"),
    (np.float32("nan"), None, "null now: 1"),
    ({"a": [1, math.nan]}, {"a": [1, None]}, "null now: 1 (in odd)"),
    (decode_text(b"caf\xe9"), "caf\ufffd", "not UTF-8"),
    ("\ud83d half", "\ufffd half", "not UTF-8"),
    (["a", b"bytes"], ["a", None], "bytes, null now"),
    ({chr(0xD800 + k): f"{k}" for k in range(2)}, {"\ufffd": "0"}, "another key's text"),
    (object, "<class 'object'>", "types that JSON does not have"),
]
USUAL = [
    (datetime.date(2026, 11, 26), "2026-11-26"),
    (decimal.Decimal("1.50"), "1.50"),
    (np.int64(7), 7),
    (np.array([1.5, 2.5]), [1.5, 2.5]),
    ("a\0b", "a\0b"),
    (10**30, 10**30),
    ((1, 2), [1, 2]),
]


@pytest.mark.parametrize(("value", "stored", "remark"), ODD, ids=map(str, range(len(ODD))))
def test_an_odd_value_changes_alone_and_is_counted_by_field(value: Any, stored: Any, remark: str) -> None:
    odd = OddValues()
    text = extra_as_json({"odd": value, "caption": "x", "score": 0.5}, odd)
    assert json.loads(text) == {"odd": stored, "caption": "x", "score": 0.5}
    assert remark in "\n".join(odd.remarks())


@pytest.mark.parametrize(("value", "stored"), USUAL)
def test_values_that_json_can_express_are_not_remarked_on(value: Any, stored: Any) -> None:
    odd = OddValues()
    assert json.loads(extra_as_json({"field": value}, odd)) == {"field": stored}
    assert not list(odd.remarks())


@pytest.mark.parametrize("levels", [70, 3000, 100_000])
def test_values_nested_too_deep_are_null_from_the_64th_level_on(levels: int) -> None:
    odd = OddValues()
    extra = json.loads(extra_as_json({"deep": nested(levels), "caption": "x"}, odd))
    assert extra["caption"] == "x"
    assert "nested more than 64 levels" in next(odd.remarks())


def test_an_extra_too_large_for_a_record_loses_its_largest_fields_only() -> None:
    odd = OddValues()
    extra = {"huge": "x" * MAX_EXTRA, "large": "y" * (MAX_EXTRA // 2), "caption": "x"}
    stored = json.loads(extra_as_json(extra, odd, name="a.jpg"))
    assert sorted(stored) == ["caption", "large"]
    assert list(odd.remarks()) == ["fields left out, as a record's metadata would take more than 16 MiB: 1 (in huge)"]
    name = "n" * 1000
    fits = extra_as_json({"x": "y" * (MAX_EXTRA - 1100)}, odd, name=name)
    assert len(extra_to_json({"path": name} | json.loads(fits or b"{}"))) <= MAX_EXTRA


def test_a_remark_names_few_fields_of_many() -> None:
    odd = OddValues()
    extra_as_json({f"f{k}": math.nan for k in range(100)}, odd)
    assert next(odd.remarks()).endswith("100 (in f0, f1, f10, f11, f12 and 95 more)")


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=4)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3))


@given(st.dictionaries(st.text(st.characters()), VALUES, max_size=4))
def test_any_values_become_json_that_a_record_holds_and_parsers_read(extra: dict[str, Any]) -> None:
    odd = OddValues()
    stored = json.loads(extra_as_json({**extra, "the caption": "x"}, odd), parse_constant=pytest.fail)
    assert stored["the caption"] == "x"
    try:
        plain = json.dumps(extra, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        return
    if all(isinstance(key, str) for key in extra):
        assert json.loads(plain).items() <= stored.items() or odd


@pytest.mark.parametrize(
    ("text", "parsed", "skipped"),
    [
        (b'{"a": NaN, "b": -Infinity}', {"a": None, "b": None}, []),
        (b'{"a": %s, "b": 1}' % (b"9" * 5000), {"a": None, "b": 1}, []),
        (b'{"a": 1e999, "b": "caf\xe9"}', {"a": None, "b": "caf\ufffd"}, []),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}, []),
        (b'{"a": 1, "a": 2, "c": {"d": 1, "d": 1}}', {"a": 2, "c": {"d": 1}}, ["a", "d"]),
    ],
)
def test_json_of_other_programs_is_parsed_with_all_its_fields(text: bytes, parsed: Any, skipped: list[str]) -> None:
    from picstore.prepare.sources.metadata import SkippedFields

    counts = SkippedFields()
    value = json_object(text, counts)
    assert value is not None
    assert json.loads(extra_as_json(value, OddValues())) == parsed
    assert sorted(counts) == [f"key {key} that comes again in its object" for key in skipped]


def test_bytes_are_a_text_if_few_of_them_are_not_utf_8() -> None:
    assert decode_if_text("grün\n".encode()) == "grün\n"
    assert decode_if_text(b"caf\xe9 au lait") == "caf\udce9 au lait"
    assert decode_if_text(bytes(range(256))) is None
    assert decode_if_text(b"\xff\xfe\xfd") is None
