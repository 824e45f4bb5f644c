"""The documentation site: it builds without a warning, loads nothing from elsewhere, and names every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
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
    assert "global_1" in (site / "howto" / "dino" / "index.html").read_text()  # code that the page includes
    assert "--shard" in (site / "reference" / "commands" / "index.html").read_text()
    assert not re.search(r":(?:class|func|meth|attr|data):<code>", python)


def test_the_reference_lists_each_public_name_once() -> None:
    listed = re.findall(r"^::: picstore\.(\w+)$", (ROOT / "docs" / "reference" / "python.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(picstore.__all__) - {"__version__"})
