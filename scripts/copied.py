"""Copy tables, and code of examples/, into the pages that show them: ``python scripts/copied.py``.

A page marks the place of a copy by ``<!-- begin copied NAME -->`` and ``<!-- end copied NAME -->``. NAME is a table of
``TABLES``; a file of docs/diffs; or ``examples/PROGRAM.py:SECTION``, lines between ``# begin SECTION`` and
``# end SECTION`` of a program. So figures and code are written once, and are visible wherever a page is read; a test
compares them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
NAMES = {
    "torchvision": "torchvision + DataLoader",
    "imagefolder": "ImageFolder (Pillow)",
    "ffcv": "FFCV",
    "litdata": "LitData",
    "dali": "DALI (CPU)",
    "streaming": "MosaicML Streaming",
    "webdataset": "WebDataset",
    "spdl": "SPDL",
    "grain": "Grain (OpenCV)",
    "ray-data": "Ray Data (OpenCV)",
}


@dataclass(frozen=True)
class Measured:
    """A table of docs/benchmarks.md: the line that says how it was measured, and its rows by column."""

    how: str
    rows: list[dict[str, str]]

    @classmethod
    def read(cls, name: str) -> Measured:
        """Read the table between the markers of ``name``, for example ``"loaders peers"``."""
        found = re.search(rf"<!-- begin {name} -->\n\n(.*?)\n\n(.*?)\n\n<!-- end", BENCHMARKS.read_text(), re.DOTALL)
        if found is None:
            raise SystemExit(f"docs/benchmarks.md has no measured table {name}")
        head, _, *rows = (_cells(line) for line in found[2].splitlines())
        return cls(" ".join(found[1].split()), [dict(zip(head, row, strict=True)) for row in rows])

    @property
    def where(self) -> str:
        """Date, processor and its count, of the line that says how."""
        _, day, processor, cpus, *_ = self.how.split(", ")
        return f"{day}, {processor}, {cpus}"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def number(cell: str) -> float:
    """Return the value of a cell such as ``"4,052"``."""
    return float(cell.replace(",", ""))


def by_rate(rows: dict[str, dict[str, str]]) -> list[str]:
    """Return the peers of ``NAMES``, the fastest first."""
    return sorted(NAMES, key=lambda case: -number(rows[case]["images/s, median"]))


def _row_of(label: str) -> list[str]:
    """Return the cells after the label of the only row of docs/benchmarks.md that begins with ``label``."""
    found = [_cells(line) for line in BENCHMARKS.read_text().splitlines() if line.startswith(f"| {label} |")]
    if len(found) != 1:
        raise SystemExit(f"docs/benchmarks.md has {len(found)} rows {label!r}")
    return [cell.strip("*") for cell in found[0][1:]]


def speed() -> str:
    """Return the README's table: jobs, machines, and images/s of picstore and of other loaders."""
    rows = {row["case"]: row["images/s, median"] for row in Measured.read("loaders peers").rows}
    (torchvision,) = _row_of(
        "torchvision's `decode_jpeg` and transforms v2 in a DataLoader with 16 workers, original files"
    )[:1]
    (cpu,) = _row_of('picstore, `device="cpu"`, lossless, 4 processes')[:1]
    (gpu,) = _row_of("picstore, GPU, lossless, 4 processes")[:1]
    small, large = _row_of("picstore, GPU, quality 90, 4 processes")[0].removesuffix(" in batches of 1,024").split("; ")
    nvjpeg = _row_of("nvJPEG called through torchvision in picstore's loader, lossless")[0]
    two, sixteen, h100 = "2 CPU cores", "16 cores beside an H100", "one H100, 16 cores"
    rates = [
        ("original quality", two, f"**{rows['picstore']}**", _peers(rows, "torchvision", "ffcv", "dali")),
        ("re-encoded at quality 90", two, f"**{rows['picstore-q90']}**", f"FFCV {rows['ffcv-q90']}"),
        ("original quality", sixteen, f"**{cpu}**", f"{NAMES['torchvision']}, 16 workers, {torchvision}"),
        (
            "original quality, GPU",
            h100,
            f"**{gpu}**",
            f"picstore decoding by NVIDIA's nvJPEG, {nvjpeg}",
        ),
        ("re-encoded at quality 90, GPU", h100, f"**{small}**; in batches of 1,024, **{large}**", "not measured"),
    ]
    head = ["| images | machine | picstore | compared with |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in rates)])


def _peers(rows: dict[str, str], *cases: str) -> str:
    return ", ".join(f"{NAMES[case]} {rows[case]}" for case in cases)


def loaders() -> str:
    """Return the standard job's images/s of picstore and of all peers, on two cores."""
    table = Measured.read("loaders peers")
    rows = {row["case"]: row for row in table.rows}
    lines = ["| loader | images/s | picstore is |", "|---|---|---|"]
    for case in ["picstore", *by_rate(rows)]:
        rate, times = rows[case]["images/s, median"], rows[case]["picstore is"]
        lines.append(f"| {NAMES.get(case, case)} | {rate} | {times} |")
    return "\n".join([*lines, "", f"{table.where}."])


def arguments() -> str:
    """Return the table of the Loader's arguments: the defaults that are literals, and the text of the docstring."""
    module = ast.parse((ROOT / "picstore" / "train" / "loader.py").read_text())
    (loader,) = (each for each in module.body if isinstance(each, ast.ClassDef) and each.name == "Loader")
    (init,) = (each for each in loader.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    defaults = {
        option.arg: f"`{ast.unparse(default)}`".replace("'", '"')
        for option, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
        if isinstance(default, ast.Constant) and default.value is not None
    }
    section = (ast.get_docstring(loader) or "").partition("\nArgs:\n")[2].partition("\nRaises:\n")[0]
    lines = ["| argument | default | meaning |", "|---|---|---|"]
    for names, text in re.findall(r"^    (\w[\w, ]*): (.*(?:\n     .*)*)", section, re.MULTILINE):
        meaning = re.sub(r":attr:`(?:picstore\.)?(.*?)`", r"`\1`", " ".join(text.split())).replace("``", "`")
        named = ", ".join(f"`{name}`" for name in names.split(", "))
        lines.append(f"| {named} | {defaults.get(names, '')} | {meaning} |")
    return "\n".join(lines)


TABLES = {"speed": speed, "loaders": loaders, "arguments": arguments}
PLACE = re.compile(r"(<!-- begin copied ([\w./:]+) -->\n).*?(<!-- end copied \2 -->\n)", re.DOTALL)


def code(name: str) -> str:
    """Return a diff, or a section of a program of examples/, as a block of code."""
    program, _, section = name.partition(":")
    text = (ROOT / program).read_text()
    if not section:
        return f"```diff\n{text}```"
    found = re.search(rf"^ *# begin {section}\n(.*?)^ *# end {section}\n", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"{program} has no section {section}")
    return f"```python\n{textwrap.dedent(found[1])}```"


def filled(page: str) -> str:
    """Return a page with its copies as docs/benchmarks.md and examples/ have them now."""

    def fill(place: re.Match[str]) -> str:
        copied = TABLES[place[2]]() if place[2] in TABLES else code(place[2])
        return f"{place[1]}\n{copied}\n\n{place[3]}"

    return PLACE.sub(fill, page)


def pages() -> list[Path]:
    """Return all pages that have a copy."""
    found = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    return sorted(path for path in found if PLACE.search(path.read_text()))


if __name__ == "__main__":
    for path in pages():
        path.write_text(filled(path.read_text()))
