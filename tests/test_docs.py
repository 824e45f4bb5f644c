"""The documentation's links, paths and width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WIDTH = 120  # characters; tables, code, images and long links excepted
IMAGE = re.compile(r"<img[^>]*>|!\[[^\]]*\]\([^)]*\)")
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The page's text with its blocks of code taken out."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.removesuffix("#only-light").removesuffix("#only-dark").partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_modules_that_a_page_names_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        pytest.skip("tells of modules of earlier versions")
    for name in re.findall(r"`(?:\./)?((?:[\w]+/)*\w+\.py)`", prose(page)):
        name = re.sub("[A-Z]{3,}", "*", name)  # a placeholder, such as NAME
        patterns = (name, f"picstore/**/{name}", f"tests/**/{name}", f"benchmarks/**/{name}")
        found = any(path for pattern in patterns for path in ROOT.glob(pattern))
        assert found, f"{page.name} names {name}"


def test_the_tests_that_a_page_names_exist() -> None:
    known = {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert named
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    for line in IMAGE.sub("", prose(page)).splitlines():
        if not line.startswith("|") and " " in line.strip("- "):
            assert len(line) <= WIDTH or "](" in line, f"{page.name}: {line}"
