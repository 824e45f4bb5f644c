"""The documentation site: it builds without a warning, its links lead somewhere, and everyone can read its pages."""

from __future__ import annotations

import base64
import functools
import os
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import picstore

ROOT = Path(__file__).parents[1]
# Elements and the attribute by which a page loads something; links that a reader follows are not among them.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class Loaded(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADS.get(tag, ""))
        if address:
            self.addresses.append(address)


class Linked(HTMLParser):
    """Collects the links of a page, and what links can lead to in it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.anchors |= {values.get("id") or "", values.get("name") or ""}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text())
        assert parser.addresses
        assert not [each for each in parser.addresses if re.match(r"(?:\w+:)?//", each)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:\w+:)?//", sheet.read_text()), sheet


@pytest.mark.slow
def test_the_site_shows_what_docstrings_and_help_say(site: Path) -> None:
    python = (site / "reference" / "python" / "index.html").read_text()
    assert all(f'id="picstore.{name}"' in python for name in picstore.__all__ if name != "__version__")
    assert "every_n_train_steps" in (site / "frameworks" / "index.html").read_text()  # code that the page copies
    assert "frameworks/#timm" in (site / "howto" / "timm" / "index.html").read_text()  # a redirect
    assert "--shard" in (site / "reference" / "commands" / "index.html").read_text()
    assert not re.search(r":(?:class|func|meth|attr|data):<code>", python)


def test_the_reference_lists_each_public_name_once() -> None:
    listed = re.findall(r"^::: picstore\.(\w+)$", (ROOT / "docs" / "reference" / "python.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({*picstore.__all__, "map"} - {"__version__"})


@pytest.mark.slow
def test_every_link_within_the_site_leads_to_a_page_and_its_place(site: Path) -> None:
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = Linked()
        pages[path].feed(path.read_text())
    lost = []
    for path, page in pages.items():
        base = path.parent if path.name == "index.html" else site  # 404.html is shown anywhere
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / parts.path.lstrip("/") if parts.path.startswith("/") else base / parts.path).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not parts.path:
                target = path
            if not target.is_file() or (parts.fragment and target in pages and not _has(pages[target], parts.fragment)):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert not lost


def _has(page: Linked, fragment: str) -> bool:
    return urllib.parse.unquote(fragment) in page.anchors


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown", ["light ", "dark ", "light demo/", "dark demo/", "light tutorial/", "dark benchmarks/"]
)
def test_axe_finds_no_serious_barrier_on_a_page(browser: Any, address: str, shown: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    scheme, _, path = shown.partition(" ")
    page = browser.new_context(color_scheme=scheme).new_page()
    page.goto(f"{address}/{path}")
    found = Axe().run(page).response["violations"]
    page.close()
    assert not [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found
        if each["impact"] in {"serious", "critical"}
    ]


def test_no_page_begins_with_its_reader() -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(), flags=re.DOTALL)
        heading, first, *_ = (line for line in text.splitlines() if line)
        assert heading.startswith("# ") and not re.match("For (everyone|people)", first), path


@pytest.mark.parametrize(("table", "chart", "column"), [("peers", "loaders", 1), ("recipes", "recipes", 2)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_chart_has_the_figures_and_the_day_of_its_table(table: str, chart: str, column: int, theme: str) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    text = page.partition(f"<!-- begin loaders {table} -->")[2].partition("<!-- end")[0]
    measured = {line.split("|")[column + 1].strip() for line in text.splitlines() if line.startswith("| ")}
    shown = re.findall(r">([^<>]+)</text>", (ROOT / "docs" / "images" / f"{chart}-{theme}.svg").read_text())
    drawn = {match[0].rstrip(",") for each in shown if (match := re.match(r"[\d,.]+", each))}
    assert len(drawn) >= 10 and drawn <= measured
    day = re.search(r"\d{4}-\d\d-\d\d", text)
    assert day and any(day[0] in each for each in shown)


def test_the_figure_of_the_idea_has_the_bytes_of_its_cut() -> None:
    drawn = (ROOT / "docs" / "images" / "idea-light.svg").read_text()
    stream = (ROOT / "docs" / "demo" / "astronaut.jpg").read_bytes()
    cuts = [base64.b64decode(each) for each in re.findall(r"base64,([^\"]+)", drawn)]
    assert cuts[0] == stream
    assert f"{len(stream):,} bytes" in drawn and f"{len(cuts[1]):,} bytes" in drawn
    assert cuts[1] == picstore.cut(stream, (176, 36, 126, 170))[0]
