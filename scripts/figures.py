"""Figures of the README and the site, light and dark: ``python scripts/figures.py``.

The idea is drawn from docs/demo/astronaut.jpg, the charts from the tables of docs/benchmarks.md; all go to docs/images.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import matplotlib as mpl
from copied import NAMES, Measured, by_rate, number
from matplotlib.figure import Figure

import picstore
from picstore.jpeg.markers import find_restart_segments, parse_header

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
BOX = (176, 36, 126, 170)  # left, top, width, height in the photograph
SIDE = 300  # units of the drawing that the photograph takes


@dataclass(frozen=True)
class Theme:
    """Colors of a figure."""

    name: str
    text: str
    muted: str
    peer: str
    picstore: str
    taken: str


THEMES = (
    Theme("light", "#1f2328", "#59636e", "#aeb7c2", "#3f51b5", "#b26a00"),
    Theme("dark", "#e6edf3", "#a6afb9", "#5b6570", "#8fa8ff", "#ffc107"),
)


def main() -> None:
    """Write all figures."""
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "picstore", "font.family": "sans-serif", "font.size": 11}
    for theme in THEMES:
        (IMAGES / f"idea-{theme.name}.svg").write_text(draw_idea(theme))
        draw_loaders(theme)
        draw_recipes(theme)


def draw_idea(theme: Theme) -> str:
    """Draw the photograph, its tiles, a box, the bytes of its segments, and the cut."""
    stream = (DOCS / "demo" / "astronaut.jpg").read_bytes()
    header = parse_header(stream)
    starts, ends = find_restart_segments(stream, header)
    cut, (dx, dy) = picstore.cut(stream, BOX)
    part = parse_header(cut)
    tile = (header.restart_interval * header.mcu_size[0], header.mcu_size[1])
    columns = header.mcus[0] // header.restart_interval
    left, top = BOX[0] - dx, BOX[1] - dy
    taken = {
        row * columns + column
        for row in range(top // tile[1], -(-(top + part.height) // tile[1]))
        for column in range(left // tile[0], -(-(left + part.width) // tile[0]))
    }
    scale = SIDE / header.width
    grid = "".join(f"M0 {y * scale:g}H{SIDE}" for y in range(tile[1], header.height, tile[1]))
    grid += "".join(f"M{x * scale:g} 0V{SIDE}" for x in range(tile[0], header.width, tile[0]))
    left_of_cut, larger = 600, 250 / part.width  # in the drawing
    picture = f'<image width="{SIDE}" height="{SIDE}" href="{_embed(stream)}"/>'
    shown = [
        f'<g transform="translate(10 34)">{picture}<path class="grid" d="{grid}"/>',
        f'<rect class="tiles" {_rectangle(left, top, part.width, part.height, scale)}/>',
        f'<rect class="box" {_rectangle(*BOX, scale)}/></g>',
        _text(10, 22, "A photograph, its tiles, a crop", "head"),
        _text(10, SIDE + 54, f"{len(stream):,} bytes, {len(starts)} tiles of {tile[0]} × {tile[1]} pixels"),
        _text(340, 22, "Its bytes, tile by tile", "head"),
        *_draw_bytes(len(stream), header.length, list(zip(starts, ends, strict=True)), taken),
        _text(340, SIDE + 54, f"{len(taken)} segments lie under the crop"),
        _text(left_of_cut, 22, "The cut, a JPEG", "head"),
        f'<g transform="translate({left_of_cut} 34)">'
        f'<image width="{part.width * larger:g}" height="{part.height * larger:g}" href="{_embed(cut)}"/>'
        f'<rect class="tiles" {_rectangle(0, 0, part.width, part.height, larger)}/>'
        f'<rect class="box" {_rectangle(dx, dy, BOX[2], BOX[3], larger)}/></g>',
        _text(left_of_cut, SIDE + 54, f"{len(cut):,} bytes to decode, {len(cut) / len(stream):.0%}"),
    ]
    title = "A crop is cut out of the compressed bytes before anything is decoded"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 870 {SIDE + 66}" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            "<style>text{font:14px sans-serif;fill:" + theme.muted + "}",
            ".head{font-weight:bold;fill:" + theme.text + "}.grid{fill:none;stroke:#fff;stroke-opacity:.35}",
            ".tiles{fill:" + theme.taken + ";fill-opacity:.15;stroke:" + theme.taken + ";stroke-width:2.5;",
            "stroke-dasharray:7 4}.box{fill:none;stroke:#fff;stroke-width:3}",
            ".rest{fill:" + theme.peer + "}.taken{fill:" + theme.taken + "}</style>",
            *shown,
            "</svg>\n",
        ]
    )


def _draw_bytes(size: int, header: int, segments: Sequence[tuple[int, int]], taken: set[int]) -> list[str]:
    """Draw a stream as lines of equal numbers of bytes, its taken segments in their color."""
    lines, width, height = 16, 230.0, SIDE / 16
    shown = []
    pieces = [(0, header, True), *((int(a), int(b), k in taken) for k, (a, b) in enumerate(segments))]
    per_line = size / lines
    for begin, end, is_taken in pieces:
        position = float(begin)
        while position < end:
            line = int(position // per_line)
            stop = min(float(end), (line + 1) * per_line)
            x, length = (position - line * per_line) / per_line * width, (stop - position) / per_line * width
            kind = "taken" if is_taken else "rest"
            shown.append(
                f'<rect class="{kind}" x="{340 + x:.1f}" y="{34 + line * height:.1f}" '
                f'width="{max(length - 0.6, 0.3):.1f}" height="{height - 4:.1f}"/>'
            )
            position = stop if stop > position else position + 1
    return shown


def _embed(stream: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(stream).decode()


def _rectangle(left: float, top: float, width: float, height: float, scale: float) -> str:
    values = {"x": left, "y": top, "width": width, "height": height}
    return " ".join(f'{name}="{value * scale:g}"' for name, value in values.items())


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>'


def draw_loaders(theme: Theme) -> None:
    """Draw images/s of the standard job by picstore and by each peer on the same bytes."""
    table = Measured.read("loaders peers")
    rows = {row["case"]: row for row in table.rows}
    cases = ["picstore", *by_rate(rows)]
    figure, axes = _bars(theme, len(cases), f"Standard job: {table.where}")
    for k, case in enumerate(cases):
        rate, times = rows[case]["images/s, median"], rows[case]["picstore is"]
        axes.barh(k, number(rate), color=theme.peer if times else theme.picstore, height=0.72)
        _label(axes, k, rate, f" (picstore is {times})" if times else "", theme)
    axes.set_yticks(range(len(cases)), [NAMES.get(case, case) for case in cases], color=theme.text)
    axes.set_xlim(0, number(rows["picstore"]["images/s, median"]) * 1.12)
    _save(figure, f"loaders-{theme.name}.svg")


def draw_recipes(theme: Theme) -> None:
    """Draw images/s of each recipe by picstore and by the loader that the recipe comes from."""
    table = Measured.read("loaders recipes")
    pairs = list(zip(table.rows[::2], table.rows[1::2], strict=True))
    figure, axes = _bars(theme, 2 * len(pairs), f"Recipes: {table.where}")
    for k, pair in enumerate(pairs):
        for below, row in enumerate(pair):
            rate = row["images/s, median"]
            axes.barh(k + 0.36 * below, number(rate), color=theme.peer if below else theme.picstore, height=0.33)
            times = f" (picstore is {row['picstore is']})" if below else ""
            _label(axes, k + 0.36 * below, rate, f", {row['case']}{times}", theme)
    axes.set_yticks([k + 0.18 for k in range(len(pairs))], [first["recipe"] for first, _ in pairs], color=theme.text)
    axes.set_xlim(0, max(number(first["images/s, median"]) for first, _ in pairs) * 1.18)
    _save(figure, f"recipes-{theme.name}.svg")


def _label(axes: Any, y: float, rate: str, remark: str, theme: Theme) -> None:
    """Write a rate, and a remark, beside the end of its bar."""
    place: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points"}
    axes.annotate(rate + remark, (number(rate), y), va="center", color=theme.text, **place)


def _bars(theme: Theme, lines: int, where: str) -> tuple[Figure, Any]:
    """Make empty axes for horizontal bars, the first of them above."""
    figure = Figure(figsize=(8.6, 0.9 + 0.33 * lines), layout="constrained")
    axes = figure.subplots()
    axes.invert_yaxis()
    axes.set_xlabel(f"images/s. {where}", color=theme.muted)
    axes.tick_params(colors=theme.muted, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks([])
    return figure, axes


def _save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / name, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
