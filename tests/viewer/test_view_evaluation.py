"""Conditions of the page: their end when nobody waits, their limit of time, and what they keep waiting."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from pictures import require
from samples import picture
from starlette.testclient import TestClient
from view_page import TOKEN

import picstore
from picstore.errors import UsageError
from picstore.viewer import records as evaluation
from picstore.viewer.queries import parse_filter
from picstore.viewer.records import Interrupted, Records, evaluate
from picstore.viewer.server import make_app
from picstore.viewer.session import Session

# Seconds, in which DuckDB cannot be interrupted, as it looks after each 2,048 records.
SLOW = " OR ".join(f"regexp_matches(long || {k}, '(x?x?x?x?x?x?y)+z')" for k in range(24))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[picstore.Dataset]:
    """Two records with long texts."""
    path = tmp_path_factory.mktemp("slow") / "set"
    with picstore.Writer(path) as writer:
        for number in range(2):
            writer.add(picture(number))
    texts = ["x" * 4_000_000] * 2
    picstore.Dataset(path).with_columns({"long": texts}).save()
    yield picstore.Dataset(path)
    for _ in range(4):  # the threads that were given up
        assert evaluation._running.acquire(timeout=60)
    evaluation._running.release(4)


def test_a_condition_has_the_result_of_the_table(dataset: picstore.Dataset) -> None:
    marks = evaluate(dataset.table, "label = 1", gone=threading.Event())
    assert marks.tolist() == dataset.table.where("label = 1").tolist()
    for wrong in ("no = 3", "random() < 1"):
        with pytest.raises(UsageError, match="is refused"):
            evaluate(dataset.table, wrong, gone=threading.Event())


def test_a_condition_is_ended_after_a_limit_that_is_named(
    slow: picstore.Dataset, make_client: Callable[[picstore.Dataset], TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    require(importlib.util.find_spec("duckdb"), "duckdb")
    monkeypatch.setattr(evaluation, "SECONDS", 0.2)
    monkeypatch.setattr(evaluation, "_GRACE", 0.1)
    answer = make_client(slow).get("/api/records", params={"filter": json.dumps({"where": SLOW})})
    assert answer.status_code == 400
    assert "0.2 s" in answer.json()["error"]


def test_a_condition_is_given_up_with_its_client_and_holds_no_other_back(
    slow: picstore.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_GRACE", 0.1)
    records, gone = Records(slow), threading.Event()
    records.read()
    endless, other = parse_filter(json.dumps({"where": SLOW})), parse_filter('{"labels": [-1]}')
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(records.count, endless, gone)
        time.sleep(0.1)
        assert records.count(other) == 2
        assert records.count(parse_filter('{"where": "id = 1"}')) == 1
        gone.set()
        with pytest.raises(Interrupted):
            first.result()


def test_a_request_that_waits_for_a_condition_survives_the_first_client(
    dataset: picstore.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Barrier(2)
    real = evaluation.evaluate

    def wait_for_first(table: Any, text: str, *, gone: threading.Event) -> Any:
        if gone is first_gone:
            begun.wait()
            gone.wait()
            raise Interrupted("the first has gone")
        return real(table, text, gone=gone)

    monkeypatch.setattr("picstore.viewer.records.evaluate", wait_for_first)
    records, first_gone, chosen = Records(dataset), threading.Event(), parse_filter('{"where": "label = 1"}')
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(records.count, chosen, first_gone)
        begun.wait()
        second = threads.submit(records.count, chosen)
        time.sleep(0.05)
        assert not second.done()
        first_gone.set()
        assert second.result() == int(np.count_nonzero(dataset.table["label"] == 1))
        with pytest.raises(Interrupted):
            first.result()


def test_an_answer_is_told_when_the_browser_goes(dataset: picstore.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()

    def evaluate_until_gone(table: Any, text: str, *, gone: threading.Event) -> Any:
        if gone.wait(60):
            told.set()
        raise Interrupted("the browser has gone")

    async def run() -> None:
        messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]
        query = urlencode({"filter": '{"where": "id = 1"}'}).encode()
        scope = {"type": "http", "method": "GET", "path": f"/{TOKEN}/api/records", "query_string": query}
        host = {"headers": [(b"host", b"localhost")]}
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.sleep(0.05)
            return messages.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        await make_app(Session(Records(dataset)), token=TOKEN)({**scope, **host}, receive, send)
        assert sent[0]["status"] == 400

    monkeypatch.setattr("picstore.viewer.records.evaluate", evaluate_until_gone)
    asyncio.run(run())
    assert told.is_set()
