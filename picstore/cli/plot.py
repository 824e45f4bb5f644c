"""A plot of qualities as SVG, written by hand: two panels over the bytes of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 640, 220, 64, 24, 48, 56  # pixels
_APART = 14  # between the labels of points
# Attributes and no style sheet, which ImageMagick's renderer does not know.
_GRID = 'stroke="#dddddd"'
_LINES = {
    "mean": 'fill="none" stroke="#1f6fb4" stroke-width="2"',
    "low": 'fill="none" stroke="#c8553d" stroke-width="2" stroke-dasharray="6 4"',
}


def draw_qualities(rows: Sequence[dict[str, Any]], *, title: str) -> str:
    """PSNR and SSIM over the mean bytes of an image, a point a quality, as an SVG document.

    Args:
        rows: as ``Measured.rows`` gives them, at least one.
        title: what stands above.
    """
    sizes = [row["bytes"] / 1000 for row in rows]
    marks = [str(row["quality"]) for row in rows]
    ssim = [("mean", [row["ssim"] for row in rows]), ("low", [row["ssim_low"] for row in rows])]
    height = _TOP + 2 * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 22, title),
        *_panel(_TOP, "PSNR of RGB, dB", sizes, [("mean", [row["psnr"] for row in rows])], marks),
        *_panel(_TOP + _PANEL + _GAP, "SSIM of luma: mean, and dashed the 5 % below", sizes, ssim, marks),
        _text(_WIDTH - _RIGHT, height - 8, "kB an image; the numbers are qualities", anchor="end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(
    top: float, name: str, xs: Sequence[float], lines: Sequence[tuple[str, Sequence[float]]], marks: Sequence[str]
) -> list[str]:
    x_ticks, y_ticks = _ticks(0, max(xs)), _ticks(min(map(min, (ys for _, ys in lines))), max(lines[0][1]))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), top + (1 - up) * _PANEL

    parts = [_text(_LEFT, top - 8, name, small=True)]
    for tick in x_ticks:
        x, bottom = place(tick, y_ticks[0])
        parts.append(f'<line {_GRID} x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:.1f}"/>')
        parts.append(_text(x, bottom + 16, f"{tick:g}", anchor="middle", small=True))
    for tick in y_ticks:
        left, y = place(x_ticks[0], tick)
        parts.append(f'<line {_GRID} x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, f"{tick:g}", anchor="end", small=True))
    for kind, ys in lines:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, xs, ys))
        parts.append(f'<polyline {_LINES[kind]} points="{points}"/>')
    labelled = -math.inf
    for (x, y), mark in zip(map(place, xs, lines[0][1]), marks, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f6fb4"/>')
        if x - labelled >= _APART:
            parts.append(_text(x, y - 8, mark, anchor="middle", small=True))
            labelled = x
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that enclose a range."""
    rough = max(high - low, abs(high) * 1e-6, 1e-9) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first, last = math.floor(low / step), max(math.floor(low / step) + 1, math.ceil(high / step + 0.1))
    return [round(k * step, 12) for k in range(first, last + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", small: bool = False) -> str:
    look = 'font-family="sans-serif" font-size="' + ('11" fill="#666666"' if small else '13" fill="#333333"')
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look}>{escape(text)}</text>'
