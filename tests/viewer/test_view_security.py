"""Who the page's server answers, and what it lets a browser do."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from starlette.testclient import TestClient
from view_page import BASE, TOKEN

import picstore
from picstore.viewer.records import Records
from picstore.viewer.security import is_local, new_token, redirecting_file
from picstore.viewer.server import make_app
from picstore.viewer.session import Session

STATIC = Path(picstore.__file__).parent / "viewer" / "static"


ORIGIN = "http://127.0.0.1:8000"


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/dataset", "/api/records", "/thumbnail?position=0"])
def test_outside_of_the_secret_path_nothing_is_answered(client: TestClient, path: str) -> None:
    for wrong in ("", "/x", f"/{TOKEN[:-1]}", f"/{TOKEN}x", f"/x/{TOKEN}", "/%C3%A9", "/%00", f"//{TOKEN}"):
        assert client.get(f"{ORIGIN}{wrong}{path}").status_code == 403
    assert (
        client.get(f"{ORIGIN}{path}", params={"token": TOKEN}, headers={"x-picstore-token": TOKEN}).status_code == 403
    )


def test_no_answer_sets_a_cookie_and_files_are_named_below_the_address(client: TestClient) -> None:
    for path in ("/", "/static/main.js", "/api/dataset", "/thumbnail?position=0"):
        assert "set-cookie" not in client.get(path).headers
    page = client.get("/").text
    assert TOKEN not in page
    assert page.count('href="static/') + page.count('src="static/') == 3
    without = client.get(f"{ORIGIN}/{TOKEN}", follow_redirects=False)
    assert without.headers["location"].endswith(f"/{TOKEN}/")


@pytest.mark.parametrize("path", ["/api/dataset", "/picture?position=0", "/static/main.js"])
def test_reading_from_another_port_or_site_is_refused(client: TestClient, path: str) -> None:
    for site in ("same-site", "cross-site", "what"):
        assert client.get(path, headers={"sec-fetch-site": site}).status_code == 403
        link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.get(path, headers=link).status_code == 403
    for site in ("same-origin", "none"):
        assert client.get(path, headers={"sec-fetch-site": site}).status_code == 200


def test_links_to_the_page_stand_anywhere_but_no_frame_or_script_holds_it(client: TestClient) -> None:
    for site in ("same-site", "cross-site"):
        link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.get("/", headers=link).status_code == 200
        for changed in ({"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "no-cors"}, {"sec-fetch-mode": "cors"}):
            assert client.get("/", headers=link | changed).status_code == 403


def test_only_the_user_can_read_the_file_that_opens_the_page_and_it_goes() -> None:
    with redirecting_file("http://127.0.0.1:1/secret/") as url:
        assert "secret" not in url
        file = Path(unquote(urlsplit(url).path))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert 'content="0; url=http://127.0.0.1:1/secret/"' in file.read_text()
    assert not file.parent.exists()


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:1234", True),
        ("[::1]:8000", True),
        ("LOCALHOST", True),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("evil@localhost", False),
        ("", False),
        ("localhost:x", False),
        ("localhost/..", False),
        ("127.0.0.1#evil.example", False),
        ("127.0.0.1?x", False),
        ("localhost.", False),
    ],
)
def test_a_host_that_is_not_this_machine_is_refused(client: TestClient, host: str, local: bool) -> None:
    assert is_local(host) is local
    assert client.get("/api/dataset", headers={"host": host}).status_code == (200 if local else 403)


def test_requests_of_other_sites_are_refused_and_may_not_read_answers(client: TestClient) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9999", "file://127.0.0.1:8000", "http://[", ""):
        answer = client.get("/api/dataset", headers={"origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert client.get("/api/dataset", headers={"origin": "http://127.0.0.1:8000"}).status_code == 200
    for site in ("cross-site", "same-site", "none"):
        assert client.post("/api/health/verify", headers={"sec-fetch-site": site}).status_code == 403
    assert client.post("/api/health/verify", headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get("/api/health/verify").status_code == 405
    assert client.get("/api/health/verification").json()["state"] == "idle"


@pytest.mark.parametrize("path", ["/", "/api/dataset", "/picture?position=0", "/api/no-such", "/static/main.js"])
def test_every_answer_forbids_other_sources_and_embedding(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.fixture
def embedded(dataset: picstore.Dataset) -> TestClient:
    """A client of the server as ``--embed`` makes it."""
    return TestClient(make_app(Session(Records(dataset)), token=TOKEN, embed=True), base_url=BASE)


@pytest.mark.parametrize("path", ["/", "/api/dataset", "/api/no-such", "/static/main.js"])
def test_embed_names_this_machine_alone_as_frame_ancestor(embedded: TestClient, path: str) -> None:
    headers = embedded.get(path).headers
    (frames,) = (each for each in headers["content-security-policy"].split("; ") if each.startswith("frame-ancestors"))
    assert frames.split()[1:] == ["http://localhost:*", "http://127.0.0.1:*"]
    assert "x-frame-options" not in headers
    assert headers["cross-origin-resource-policy"] == "same-origin" and headers["referrer-policy"] == "no-referrer"


def test_embed_opens_the_page_in_a_frame_and_nothing_else(embedded: TestClient, client: TestClient) -> None:
    for site in ("same-site", "cross-site"):
        frame = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
        assert embedded.get("/", headers=frame).status_code == 200
        assert client.get("/", headers=frame).status_code == 403
        for path in ("/api/dataset", "/picture?position=0", "/static/main.js"):
            assert embedded.get(path, headers=frame).status_code == 403
        for changed in ({"sec-fetch-dest": "embed"}, {"sec-fetch-dest": "object"}, {"sec-fetch-mode": "no-cors"}):
            assert embedded.get("/", headers=frame | changed).status_code == 403
    assert embedded.get(f"{ORIGIN}/x/").status_code == 403
    assert embedded.get("/", headers={"host": "evil.example"}).status_code == 403


def test_reading_takes_no_other_method_and_no_path_leaves_the_folder(client: TestClient) -> None:
    for path in ("/", "/api/dataset", "/api/records", "/picture"):
        assert client.post(path).status_code == 405
        assert client.delete(path).status_code == 405
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd"):
        assert client.get(path).status_code == 404


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43


@pytest.mark.parametrize("file", sorted(STATIC.iterdir()), ids=lambda file: file.name)
def test_no_file_of_the_page_refers_to_another_site_or_takes_text_for_html(file: Path) -> None:
    text = file.read_text().replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text
    assert "https://" not in text
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert sink not in text


def test_the_static_files_are_in_the_wheel(make_client: Callable[..., TestClient]) -> None:
    del make_client
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'packages = ["picstore"]' in pyproject  # every file below it
    assert {file.suffix for file in STATIC.iterdir()} == {".html", ".css", ".js", ".svg"}
