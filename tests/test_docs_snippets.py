"""Code on all pages: commands have verbs and options that exist, Python has names and arguments that exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import picstore
from picstore.cli import program

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """The words after ``picstore`` of each command in a fence of shell lines, or between backquotes."""
    text = page.read_text()
    lines = [line for language, code in FENCE.findall(text) if language in ("", "bash") for line in code.splitlines()]
    lines += re.findall(r"`(picstore [a-z][^`]*)`", FENCE.sub("", text))
    for line in lines:
        line = re.sub(r"\[[^]]*\]", "", line)  # what a form shows as optional
        found = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:srun )?picstore +([a-z].*)", line)
        if found:
            yield shlex.split(found[1], comments=True)


def wrong_options(words: list[str]) -> list[str]:
    """Options among a command's words that its verb has not; the verb, if it does not exist."""
    verb = program.get_command(None, words[0])  # type: ignore[arg-type]
    if verb is None:
        return words[:1]
    known = {name for each in verb.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    return [word for word in words[1:] if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_a_page_have_verbs_and_options_that_exist(page: Path) -> None:
    assert [(words, wrong) for words in commands(page) if (wrong := wrong_options(words))] == []


def resolve(node: ast.expr) -> Any:
    """The object that a dotted name below ``picstore`` means; None for another expression."""
    if isinstance(node, ast.Name):
        return picstore if node.id == "picstore" else None
    if isinstance(node, ast.Attribute):
        holder = resolve(node.value)
        public = holder is picstore or holder is picstore.recipes
        return getattr(holder, node.attr) if public else None
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_on_a_page_has_names_and_arguments_that_exist(page: Path) -> None:
    for language, code in FENCE.findall(page.read_text()):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Attribute):
                resolve(node)
            elif isinstance(node, ast.Call) and callable(called := resolve(node.func)):
                parameters = inspect.signature(called).parameters
                given = {each.arg for each in node.keywords if each.arg is not None}
                open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
                assert open_ended or given <= set(parameters), ast.unparse(node)


def test_a_wrong_verb_option_or_name_is_found() -> None:
    assert wrong_options(["convert", "photos", "train", "--qualty", "90"]) == ["--qualty"]
    assert wrong_options(["transmogrify"]) == ["transmogrify"]
    assert sum(1 for page in PAGES for _ in commands(page)) > 100
    with pytest.raises(AttributeError):
        resolve(ast.parse("picstore.RandomCorp", mode="eval").body)
