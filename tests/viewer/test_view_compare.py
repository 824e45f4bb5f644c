"""Two datasets on the page: the answers, and the other one's own page below it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from view_page import BASE, CLASSES, COUNT, TOKEN

import picstore
from picstore.viewer import comparison
from picstore.viewer.records import Records
from picstore.viewer.server import make_app
from picstore.viewer.session import Session


@pytest.fixture
def client_of_two(dataset: picstore.Dataset, other: picstore.Dataset) -> TestClient:
    session = Session(Records(dataset), other=Session(Records(other)))
    return TestClient(make_app(session, token=TOKEN), base_url=BASE)


def finished(client: TestClient) -> dict[str, Any]:
    """Wait for the search; returns its report."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        report: dict[str, Any] = client.get("/api/compare/search").json()
        if report["state"] != "running":
            return report
        time.sleep(0.02)
    pytest.fail("the search did not end")


def test_classes_sizes_and_qualities_of_both_are_told(client_of_two: TestClient, other: picstore.Dataset) -> None:
    assert client_of_two.get("/api/dataset").json()["beside"] == str(other.path)
    told = client_of_two.get("/api/compare/classes").json()
    assert (told["both"], told["only"], told["other_only"], told["renumbered"]) == (2, 1, 1, 2)
    assert {row["name"]: row["other_images"] for row in told["rows"]} == {"cat": 2, "dog": 0, "Sea lion": 1, "bird": 1}
    sizes = client_of_two.get("/api/compare/sizes").json()
    assert [(sum(each["counts"]), sum(each["other_counts"])) for each in sizes] == 5 * [(COUNT, 4)]
    assert client_of_two.get("/api/compare/quality").json()["median"] == 90


def test_shared_images_are_listed_with_different_classes_first(
    client_of_two: TestClient, dataset: picstore.Dataset, other: picstore.Dataset
) -> None:
    assert client_of_two.post("/api/compare/start").json()["state"] in ("running", "done")
    report = finished(client_of_two)
    assert (report["state"], report["shared"], report["differing"]) == ("done", 3, 1)
    first = report["pairs"][0]
    assert (first["name"], first["other_name"]) == ("cat", "Sea lion")
    for pair in report["pairs"]:
        one, two = dataset[pair["position"]], other[pair["other_position"]]
        assert (one.width, one.height) == (two.width, two.height)
        assert CLASSES[one.label] == pair["name"] and other.classes[two.label] == pair["other_name"]
    assert client_of_two.post("/api/compare/start?distance=12").status_code == 400


def test_the_page_of_the_other_dataset_lies_below(client_of_two: TestClient, other: picstore.Dataset) -> None:
    told = client_of_two.get("/other/api/dataset").json()
    assert (told["uuid"], told["images"], told["beside"]) == (other.uuid, 4, "")
    assert client_of_two.get("/other/").text == client_of_two.get("/").text
    assert client_of_two.get("/other/static/main.js").status_code == 200
    assert client_of_two.get("/other/thumbnail?position=3").headers["content-type"] == "image/jpeg"
    assert client_of_two.get("http://127.0.0.1:8000/other/api/dataset").status_code == 403


def test_a_search_is_cancelled(client_of_two: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, progress: Any, **__: object) -> None:
        while True:
            progress.advance(1)
            time.sleep(0.001)

    monkeypatch.setattr(comparison, "hash_images", endless)
    assert client_of_two.post("/api/compare/start").json()["state"] == "running"
    client_of_two.post("/api/compare/cancel")
    assert finished(client_of_two)["state"] == "cancelled"


def test_without_another_dataset_there_is_nothing_to_compare(
    client: TestClient, make_client: Callable[[picstore.Dataset], TestClient]
) -> None:
    for path in ("classes", "sizes", "quality", "search"):
        answer = client.get(f"/api/compare/{path}")
        assert answer.status_code == 400 and "DATASET OTHER" in answer.json()["error"]
    assert client.get("/other/").status_code == 404
