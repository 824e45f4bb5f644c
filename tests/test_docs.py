"""The documentation's links, paths and nouns, and the length of tests' names."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest

import picstore

ROOT = Path(__file__).parents[1]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAME_LENGTH = 70  # characters of a test's name
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The page's text with its blocks of code taken out."""
    return CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_pages_have_the_figures_of_benchmarks_and_the_code_of_examples() -> None:
    copied = runpy.run_path(str(ROOT / "scripts" / "copied.py"))
    pages = copied["pages"]()
    assert ROOT / "README.md" in pages
    assert [page.name for page in pages if copied["filled"](page.read_text()) != page.read_text()] == []


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


def test_names_of_tests_have_at_most_70_characters() -> None:
    names = {name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(names) > 1000
    assert [name for name in sorted(names) if len(name) > NAME_LENGTH] == []


@pytest.mark.parametrize("recipe", re.findall(r"^### (.*)$", CONTRIBUTING.read_text(), re.MULTILINE))
def test_the_files_and_names_of_a_recipe_exist(recipe: str) -> None:
    steps = CONTRIBUTING.read_text().split(f"### {recipe}\n", 1)[1].split("\n#", 1)[0]
    named = re.findall(r"`(?:\./)?([\w./-]+?)/?`", steps)
    paths = [name for name in named if "/" in name or name.endswith((".py", ".md", ".toml", ".yml"))]
    assert paths
    for name in paths:
        pattern = name if (ROOT / name).exists() else re.sub("[A-Z]{3,}", "*", name)
        assert any(ROOT.glob(pattern)), f"{recipe} names {name}"
    for file, name in re.findall(r"`([\w./]+\.py)`:[^.;]*?`(_?[A-Z_]{4,})`", steps):
        modules = [path.read_text() for path in ROOT.glob(re.sub("[A-Z]{3,}", "*", file))]
        assert any(re.search(rf"^{name}\b", module, re.MULTILINE) for module in modules), f"{file} has no {name}"


def test_the_page_of_the_loader_has_a_row_for_each_of_its_arguments() -> None:
    table = (ROOT / "docs" / "reference" / "loader.md").read_text().partition("## From a DataLoader")[0]
    rows = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line[:1] == "|")))
    assert rows == set(inspect.signature(picstore.Loader).parameters) - {"unknown"}


def test_the_example_of_the_order_is_what_its_rules_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    order = runpy.run_path(str(ROOT / "docs" / "order.py"))
    sys.modules.pop("reader", None)
    page = (ROOT / "docs" / "order.md").read_text()
    ids = [range(4), range(4, 8), range(8, 10)]
    assert f"K = 0x{order['key'](3, 0, 0):X}" in page
    for ranks in (2, 3):
        found = order["batches"](ids, seed=0, epoch=0, size=4, lanes=2, drop_last=False, ranks=ranks)
        assert ", ".join(f"[{' '.join(map(str, batch))}]" for batch in found) in page
