"""Two datasets on the page: the answers, the other one's own page below it, and the page in a browser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import picture
from starlette.testclient import TestClient
from view_page import BASE, CLASSES, COUNT, FAINT, TOKEN, UNNAMED, serving

import picstore
from picstore.viewer import comparison
from picstore.viewer.records import Records
from picstore.viewer.server import make_app
from picstore.viewer.session import Session


@pytest.fixture
def other(tmp_path: Path) -> picstore.Dataset:
    """Three images of the annotated dataset, one of them in another class, beside a new one."""
    with picstore.Writer(tmp_path / "other", classes=["Sea lion", "cat", "bird"]) as writer:
        for number, label in ((0, 1), (3, 0), (6, 1), (99, 2)):
            image = picture(number, width=160 + 8 * number, height=120 + 4 * (number % 5))
            writer.add(image, label=label)
    return picstore.Dataset(tmp_path / "other")


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


@pytest.fixture
def page(browser: Any, dataset: picstore.Dataset, other: picstore.Dataset) -> Iterator[Any]:
    """A window at the page of both, in which nothing may fail."""
    with serving(dataset.path, other.path) as address:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page, problems = context.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(address)
        yield page
        context.close()
        assert problems == []


@pytest.mark.slow
def test_the_browser_shows_both_and_leads_to_the_images_of_each(page: Any) -> None:
    page.locator(".pair-chart").nth(5).wait_for()
    page.wait_for_selector(".classes table")
    assert "2 classes in both" in page.inner_text(".classes")
    page.get_by_role("button", name="Look for shared images").click()
    page.locator(".pair-cell").nth(2).wait_for()
    assert "3 images" in page.inner_text(".panel") and page.locator(".pair-cell.differs").count() == 1
    for scheme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(UNNAMED) == [] and page.evaluate(FAINT) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".pair-cell a").nth(1).click()
    page.wait_for_selector(".stage")
    assert "/other/" in page.url and page.inner_text("h1") == "other"
    page.get_by_role("link", name="annotated").click()
    page.wait_for_selector(".pair-chart")
    assert page.inner_text("h1") == "annotated"
