"""Hooks of MkDocs: pages made of the programs and notebooks in examples/ and of --help."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files, InclusionLevel

from picstore.cli import program

EXAMPLES = Path(__file__).parents[1] / "examples"
# Links that work where the pages are read as files.
_LINK = re.compile(r"\]\((?:\.\./)+examples(?:/(\w+)\.(?:py|ipynb))?\)")
_ROLE = re.compile(r":(?:class|func|meth|attr):(?=<code>)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the generated pages."""
    files.append(File.generated(config, "reference/commands.md", content=_commands()))
    rows = ["# Examples", "", "| program | |", "|---|---|"]
    for path in sorted(EXAMPLES.glob("*.py")):
        text = re.sub(r"^ *# (begin|end) \w+\n", "", path.read_text(), flags=re.MULTILINE)
        summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        rows.append(f"| [{path.name}](/examples/{path.stem}.md) | {summary} |")
        page = f"# {path.name}\n\n```python\n{text}```\n"
        name, inclusion = f"examples/{path.stem}.md", InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, name, content=page, inclusion=inclusion))
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        rows.append(f"| [{path.name}](/examples/{path.stem}.md) | A notebook. |")
        name, inclusion = f"examples/{path.stem}.md", InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, name, content=_notebook(path), inclusion=inclusion))
    files.append(File.generated(config, "examples/index.md", content="\n".join(rows)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to examples to their pages."""
    return _LINK.sub(lambda match: f"](/examples/{match[1] or 'index'}.md)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Take Sphinx's roles out of docstrings."""
    return _ROLE.sub("", html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search dialog for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def _notebook(path: Path) -> str:
    """Format a notebook without outputs as a page."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells)


def _commands() -> str:
    page = ["# Commands", "", "What `--help` prints. [Command line](../cli.md) explains the options.", ""]
    whole = click.Context(program, info_name="picstore", terminal_width=80)
    for verb in program.list_commands(whole):
        if command := program.get_command(whole, verb):
            shown = command.get_help(click.Context(command, info_name=verb, parent=whole, terminal_width=80))
            page += [f"## picstore {verb}", "", "```text", shown, "```", ""]
    return "\n".join(page)
