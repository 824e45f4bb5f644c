"""``picstore.view``: the page from Python, as a link or a frame in a notebook."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]


def told(address: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{address}api/dataset", timeout=60) as answer:  # noqa: S310
        found: dict[str, object] = json.load(answer)
        return found


def test_the_page_answers_until_it_is_closed(make_dataset: Make) -> None:
    path = make_dataset(12)
    with picstore.view(path) as page:
        assert told(page.address)["images"] == 12
        with picstore.view(picstore.Dataset(path).select(range(5)), path) as other:
            assert other.shown == [(str(path), 5), (str(path), 12)]
            assert (told(other.address)["images"], told(f"{other.address}other/")["images"]) == (5, 12)
            assert other.address != page.address
    for closed in (page, other):
        closed.close()  # a second time
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            told(closed.address)


def test_a_notebook_gets_a_link_and_with_embed_a_frame(make_dataset: Make) -> None:
    path = make_dataset(4)
    for embed, opening in ((False, "<a "), (True, "<iframe ")):
        with picstore.view(path, embed=embed) as page:
            html = page._repr_html_()
            assert html.startswith(opening) and page.address in html and str(path) in html
            assert page.address.startswith("http://localhost:" if embed else "http://127.0.0.1:")
            answer = urllib.request.urlopen(page.address, timeout=60)  # noqa: S310
            assert ("frame-ancestors 'none'" in answer.headers["content-security-policy"]) is not embed


def test_what_cannot_be_shown_is_refused_before_the_page_answers(make_dataset: Make) -> None:
    path = make_dataset(4)
    with pytest.raises(UsageError, match="no recipe"):
        picstore.view(path, recipe="no-such")
    with pytest.raises(UsageError, match="part"):
        picstore.view(path, split=0.5)
    with picstore.view(path) as page, pytest.raises(UsageError, match="port"):
        picstore.view(path, port=int(page.address.split(":")[2].split("/")[0]))
