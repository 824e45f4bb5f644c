"""The pages of the documentation: their length, their place in the navigation, old addresses, and visible code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import anchors

ROOT = Path(__file__).parents[1]
COPIED = re.compile(r"(<!-- begin copied (\S+) -->).*?(<!-- end copied \2 -->)", re.DOTALL)
DOCSTRINGS = re.compile(r"^::: .*\n(?:\n? {4}.*\n)*", re.MULTILINE)  # that mkdocstrings shows
FOLDER = ROOT / "docs"
PAGES = {
    path.relative_to(FOLDER).as_posix(): path for path in FOLDER.glob("**/*.md") if path.parent != FOLDER / "archive"
}
GENERATED = {"reference/commands.md", "examples/index.md"}  # by scripts/docs_hooks.py
# Words of a page at most, without the code and tables that scripts/copied.py copies. Explanations and runs that a
# reader can do without belong in docs/archive, which has no limit.
NEW = 1000  # of a page that is not in LIMITS
LIMITS = {
    "audit.md": 613,
    "benchmarks.md": 2110,
    "cli.md": 2400,
    "comparison.md": 1170,
    "compatibility.md": 650,
    "convert.md": 830,
    "decisions.md": 950,
    "demo/index.md": 290,
    "design.md": 1300,
    "distributed.md": 933,
    "editing.md": 1030,
    "environment.md": 800,
    "format.md": 4490,
    "formats.md": 2010,
    "frameworks.md": 1120,
    "gpu.md": 750,
    "imagenet.md": 310,
    "index-in-place.md": 766,
    "index.md": 325,
    "large-images.md": 558,
    "loops.md": 720,
    "map.md": 637,
    "maps.md": 773,
    "migrate.md": 796,
    "mixing.md": 670,
    "objects.md": 1070,
    "order-batches.md": 620,
    "order.md": 1340,
    "performance.md": 610,
    "reference/loader.md": 1200,
    "reference/python.md": 480,
    "reference/transforms.md": 1223,
    "reliability.md": 850,
    "remote-workers.md": 650,
    "sampling.md": 934,
    "scale.md": 815,
    "security.md": 1600,
    "shapes.md": 592,
    "sources.md": 1960,
    "targets.md": 700,
    "training.md": 1180,
    "transforms.md": 1190,
    "tutorial.md": 710,
    "view.md": 1085,
}
TOTAL = 45_600


class Nav(yaml.SafeLoader):  # type: ignore[misc]
    """Reads mkdocs.yml, whose tags for Python name functions of its extensions."""


Nav.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def words(path: Path) -> int:
    text = DOCSTRINGS.sub("", COPIED.sub("", path.read_text()))
    return len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split())


def configuration() -> dict[str, Any]:
    """Return what mkdocs.yml says."""
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Nav)  # noqa: S506 - a safe loader


def redirects() -> dict[str, str]:
    """Return the pages, with an anchor where they have one, to which addresses of earlier pages lead."""
    (found,) = (each["redirects"] for each in configuration()["plugins"] if "redirects" in each)
    return found["redirect_maps"]


def pages_of(section: object) -> list[str]:
    """Return the pages of a section of the navigation, in order."""
    if isinstance(section, str):
        return [section]
    parts = section.values() if isinstance(section, dict) else section
    return [page for part in parts for page in pages_of(part)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_at_most_its_words(page: str) -> None:
    assert words(PAGES[page]) <= LIMITS.get(page, NEW), f"shorten {page}, or move a part of it to docs/archive"


def test_no_page_that_is_gone_has_a_limit() -> None:
    assert set(LIMITS) <= set(PAGES)


def test_all_pages_together_have_at_most_their_words() -> None:
    assert sum(words(path) for path in PAGES.values()) <= TOTAL


def test_every_page_is_once_in_the_navigation() -> None:
    listed = pages_of(configuration()["nav"])
    assert sorted(listed) == sorted({*PAGES, *GENERATED})


@pytest.mark.parametrize(("old", "new"), redirects().items())
def test_an_old_address_leads_to_a_page_and_its_place(old: str, new: str) -> None:
    page, _, anchor = new.partition("#")
    assert not (FOLDER / old).exists()
    assert (FOLDER / page).is_file()
    assert not anchor or anchor in anchors(FOLDER / page)


def test_every_page_that_is_gone_has_a_redirect() -> None:
    addresses = set((ROOT / "tests" / "docs_addresses.txt").read_text().split())
    assert addresses - set(PAGES) <= set(redirects())
    assert set(PAGES) <= addresses, "add new pages to tests/docs_addresses.txt, which keeps the address of every page"


def test_no_page_includes_code_that_github_does_not_show() -> None:
    assert [name for name, path in PAGES.items() if "--8<--" in path.read_text()] == []
