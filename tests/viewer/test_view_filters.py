"""Filters of the page: what they choose, compared with a loop over the records, and histograms."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import jpeg

import picstore
from picstore.display.histograms import bin_edges
from picstore.errors import UsageError
from picstore.storage.edits.columns import make_column
from picstore.storage.format.record import Record
from picstore.viewer.queries import parse_filter, parse_ids
from picstore.viewer.records import Records
from picstore.viewer.text_search import ExtrasRead, texts_with


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ({"labels": [0, 2]}, lambda record: record.label in (0, 2)),
        ({"samplings": ["420"]}, lambda record: True),
        ({"samplings": ["444", "grey"]}, lambda record: False),
        ({"ids": "3, 10-15 ,9000-10000"}, lambda record: record.id == 3 or 10 <= record.id <= 15),
        ({"ids": "0-20, 5"}, lambda record: record.id <= 20),
        ({"ranges": {"width": [200, 300]}}, lambda record: 200 <= record.width <= 300),
        ({"ranges": {"score": [None, 0.55], "height": [124, None]}}, lambda r: r.id <= 11 and r.height >= 124),
        ({"text": "sea"}, lambda record: record.label == 2),
        ({"text": "THING 2"}, lambda record: record.id == 2 or 20 <= record.id < 30),
        ({"where": "label = 1 AND width > 250"}, lambda record: record.label == 1 and record.width > 250),
        ({"text": "thing", "labels": [1], "ids": "0-10"}, lambda record: record.label == 1 and record.id <= 10),
    ],
)
def test_a_filter_leaves_the_records_for_which_it_holds(
    records: Records, wanted: dict[str, object], holds: Callable[[Record], bool]
) -> None:
    chosen = parse_filter(json.dumps(wanted))
    expected = [k for k, record in enumerate(records.dataset) if holds(record)]
    assert records.count(chosen) == len(expected)
    assert records.positions(chosen, 0, 1000).tolist() == expected
    assert records.positions(chosen, 2, 3).tolist() == expected[2:5]


def search(records: Records, text: str) -> list[int]:
    """Positions of the records with a text, once all extras were read."""
    chosen = parse_filter(json.dumps({"text": text}))
    records.count(chosen)
    until = time.monotonic() + 60
    while records.extras.read.state == "reading" and time.monotonic() < until:
        time.sleep(0.01)
    return records.positions(chosen, 0, 1000).tolist()


def test_a_text_is_found_in_extras_as_soon_as_they_are_read(dataset: picstore.Dataset) -> None:
    records = Records(dataset)
    assert records.extras.read.state == "idle"
    assert search(records, "FILE 7<") == [k for k, record in enumerate(dataset) if record.id == 7]
    assert records.extras.read == ExtrasRead("done", len(dataset.rows), len(dataset.rows))
    assert search(records, "no such file") == []


def test_extras_of_selections_and_without_any_are_looked_through(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "train") as writer:
        for k in range(9):
            writer.add(jpeg(k), label=0, extra=None if k == 4 else {"text": f'say "{k}" é'})
    dataset = picstore.Dataset(tmp_path / "train").without([0]).select(ids=[1, 2, 4, 5])
    for text, ids in (('"5"', {5}), ("é", {1, 2, 5}), ("say", {1, 2, 5})):
        assert {dataset[k].id for k in search(Records(dataset), text)} == ids


def test_extras_beyond_the_memory_for_them_are_left_out(
    dataset: picstore.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_BYTES", "_BLOCK_BYTES"):
        monkeypatch.setattr(f"picstore.viewer.text_search.{name}", 1)
    records = Records(dataset)
    assert len(search(records, "file")) < len(dataset) and len(dataset.rows) > 1
    assert records.extras.read == ExtrasRead("full", 1, len(dataset.rows))


def test_no_filter_leaves_all_records_and_reads_no_index(records: Records) -> None:
    assert not parse_filter("")
    assert not parse_filter("{}")
    assert records.positions(parse_filter(""), 30, 10).tolist() == list(range(30, 36))
    assert records.positions(parse_filter(""), 100, 10).tolist() == []


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        '{"no_such": 1}',
        '{"labels": [1.5]}',
        '{"labels": [true]}',
        '{"labels": 3}',
        '{"text": 3}',
        '{"ids": "a-b"}',
        '{"ids": "99999999999999999999"}',
        '{"ranges": []}',
        '{"ranges": {"width": [1]}}',
        '{"ranges": {"width": ["1", null]}}',
        '{"ranges": {"width": [NaN, null]}}',
        "[" * 100_000,
        '{"ids": "1-' + "9" * 5000 + '"}',
        '{"ids": "\u0663"}',
        '{"ranges": {"width": [' + "9" * 400 + ", null]}}",
        '{"ranges": {"width": [' + "9" * 5000 + ", null]}}",
        '{"ranges": {"width": [1e400, null]}}',
        '{"labels": [9223372036854775808]}',
        '{"labels": [' + "9" * 400 + "]}",
        '{"text": "\\ud800"}',
        '{"where": "\\ud800"}',
        '{"ranges": {"\\ud800": [1, null]}}',
        json.dumps({"text": "x" * 10_001}),
        json.dumps({"ids": ",".join(["1"] * 10_001)}),
    ],
)
def test_a_malformed_filter_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_filter(text)


@pytest.mark.parametrize("wanted", [{"ranges": {"caption": [0, 1]}}, {"ranges": {"no": [0, 1]}}, {"where": "no = 3"}])
def test_a_filter_of_a_column_that_has_no_numbers_is_refused(records: Records, wanted: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        records.count(parse_filter(json.dumps(wanted)))


def test_ids_may_be_separated_by_commas_spaces_and_lines() -> None:
    assert parse_ids("1, 2;3\n4 5 - 7,8-9") == ((1, 1), (2, 2), (3, 3), (4, 4), (5, 7), (8, 9))
    assert parse_ids(" ") == ()


@given(
    st.lists(st.text(alphabet="aAbBéÉ€ 𝄞", max_size=12), min_size=1, max_size=8),
    st.text(alphabet="aAbé€", min_size=1, max_size=3),
)
def test_texts_are_found_whatever_the_case_of_ascii_letters(texts: list[str], wanted: str) -> None:
    _, files = make_column("caption", np.arange(len(texts)), texts)
    joined = np.frombuffer("".join(texts).encode(), np.uint8)
    ends = np.cumsum([len(text.encode()) for text in texts])
    small = [re.sub("[A-Z]", lambda found: found[0].lower(), text) for text in (*texts, wanted)]
    assert files
    assert texts_with(joined, ends, wanted).tolist() == [small[-1] in text for text in small[:-1]]


def test_a_text_is_found_where_two_stretches_of_the_search_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picstore.viewer.text_search._CHUNK", 4)
    texts = ["abcdefgh", "cdef", "abcd", "efgh", "", "xcdefx"]
    ends = np.cumsum([len(text) for text in texts])
    found = texts_with(np.frombuffer("".join(texts).encode(), np.uint8), ends, "cdef")
    assert found.tolist() == [True, True, False, False, False, True]


def test_histograms_count_each_record_once_and_keep_their_bins(records: Records) -> None:
    whole = {each.name: each for each in records.histograms(parse_filter(""))}
    assert set(whole) == {"label", "width", "height", "bytes", "sampling", "score"}
    few = {each.name: each for each in records.histograms(parse_filter('{"labels": [1]}'))}
    for name, histogram in whole.items():
        assert sum(histogram.counts) == len(records.dataset)
        assert sum(few[name].counts) == 12
        assert (few[name].edges, few[name].values, few[name].totals) == (
            histogram.edges,
            histogram.values,
            histogram.counts,
        )
    assert whole["label"].names == ("cat", "dog", "Sea lion")
    assert few["label"].counts == (0, 12, 0)
    width = whole["width"]
    expected, _ = np.histogram([record.width for record in records.dataset], width.edges)
    assert width.counts == tuple(expected.tolist())


@pytest.mark.parametrize("values", [[5], [1, 2, 3], [0, 0, 100_000], [1, 10**9], [0.25, 0.5], [-3.0, 7.5]])
def test_edges_of_bins_hold_all_values_and_ascend(values: list[float]) -> None:
    edges = bin_edges(np.array(values))
    assert (edges[0], edges[-1]) == (min(values), max(values))
    assert len(edges) == 2 or (np.diff(edges) > 0).all()
    assert len(edges) <= 41


def test_a_column_with_missing_numbers_counts_the_others(annotated: object) -> None:
    opened = picstore.Dataset(annotated)  # type: ignore[arg-type]
    records = Records(opened.with_columns({"rare": np.array([0.5, 2.5])}, ids=[10, 11]))
    rare = next(each for each in records.histograms(parse_filter("")) if each.name == "rare")
    assert sum(rare.counts) == 2
    assert records.count(parse_filter('{"ranges": {"rare": [0, 1]}}')) == 1


def test_a_record_is_found_by_its_id(records: Records) -> None:
    position = records.position_of(17)
    assert records.dataset[position].id == 17
    with pytest.raises(UsageError, match="77"):
        records.position_of(77)
