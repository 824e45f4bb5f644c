"""A plot of qualities as SVG, written by hand: two panels over the bytes of an image, a colour a subsampling.

The axis of bytes is logarithmic: qualities stand about evenly on it, and what one subsampling saves is a distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 640, 260, 64, 24, 68, 56  # pixels
_APART = 14  # between the labels of points
_ABOVE, _BELOW = -8, 16  # a label, from its point
# Attributes and no style sheet, which ImageMagick's renderer does not know.
_GRID = 'stroke="#dddddd"'
_GREY, _DARK = "#666666", "#333333"
_COLORS = {"420": ("#1f6fb4", _ABOVE), "444": ("#c8553d", _BELOW), "422": ("#3f8f4f", _ABOVE)}


@dataclass(frozen=True, slots=True)
class _Curve:
    """Points that a line joins; ``marks`` are their labels, and ``aside`` how far below the points these stand."""

    xs: Sequence[float]
    ys: Sequence[float]
    color: str
    marks: Sequence[str] = ()
    aside: int = 0


def draw_qualities(rows: Sequence[dict[str, Any]], *, title: str) -> str:
    """PSNR and SSIM over the mean bytes of an image, a line a subsampling, a point a quality, as an SVG document.

    Args:
        rows: as ``Measured.rows`` gives them, at least one.
        title: what stands above.
    """
    psnr, ssim, low, legend = [], [], [], []
    for number, subsampling in enumerate(dict.fromkeys(row["subsampling"] for row in rows)):
        mine = [row for row in rows if row["subsampling"] == subsampling]
        sizes, marks = [row["bytes"] / 1000 for row in mine], [str(row["quality"]) for row in mine]
        color, aside = _COLORS[subsampling]
        psnr.append(_Curve(sizes, [row["psnr"] for row in mine], color, marks, aside))
        ssim.append(_Curve(sizes, [row["ssim"] for row in mine], color, marks, aside))
        low.append(_Curve(sizes, [row["ssim_low"] for row in mine], color))
        legend.append(_text(_LEFT + 72 * number, 42, f"— {':'.join(subsampling)}", color=color))
    height = _TOP + 2 * (_PANEL + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 22, title),
        *legend,
        *_panel(_TOP, "PSNR of RGB, dB", psnr),
        *_panel(_TOP + _PANEL + _GAP, "SSIM of RGB: mean, and dashed the 5 % below", ssim, low),
        _text(_WIDTH - _RIGHT, height - 8, "kB an image; the numbers are qualities", anchor="end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _panel(top: float, name: str, curves: Sequence[_Curve], dashed: Sequence[_Curve] = ()) -> list[str]:
    """One pair of axes with its curves; their values and sizes give its range."""
    ys = [y for curve in (*curves, *dashed) for y in curve.ys]
    x_ticks, y_ticks = _log_ticks([x for curve in curves for x in curve.xs]), _ticks(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / x_ticks[0]) / math.log(x_ticks[-1] / x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), top + (1 - up) * _PANEL

    parts = [_text(_LEFT, top - 8, name, size=11, color=_GREY)]
    for tick in x_ticks:
        x, bottom = place(tick, y_ticks[0])
        parts.append(f'<line {_GRID} x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:.1f}"/>')
        parts.append(_text(x, bottom + 16, f"{tick:g}", anchor="middle", size=11, color=_GREY))
    for tick in y_ticks:
        left, y = place(x_ticks[0], tick)
        parts.append(f'<line {_GRID} x1="{left}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, f"{tick:g}", anchor="end", size=11, color=_GREY))
    for curve in dashed:
        parts += _line(curve, list(map(place, curve.xs, curve.ys)), 'stroke-dasharray="6 4"')
    for curve in curves:
        parts += _line(curve, list(map(place, curve.xs, curve.ys)))
    return parts


def _line(curve: _Curve, points: Sequence[tuple[float, float]], look: str = "") -> list[str]:
    """A curve, and its points and labels where it has marks; a label in the way of the last one is left out."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [f'<polyline fill="none" stroke="{curve.color}" stroke-width="2" {look} points="{joined}"/>']
    labelled = -math.inf
    for (x, y), mark in zip(points, curve.marks, strict=False):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{curve.color}"/>')
        if x - labelled >= _APART:
            parts.append(_text(x, y + curve.aside, mark, anchor="middle", size=11, color=curve.color))
            labelled = x
    return parts


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers that enclose positive values, from one to the next about 1.5 times as large."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 2)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in (1, 1.5, 2, 3, 5, 7)]
    first = max(tick for tick in ticks if tick <= low)
    last = min(tick for tick in ticks if tick > high)
    return [tick for tick in ticks if first <= tick <= last]


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that enclose a range."""
    rough = max(high - low, abs(high) * 1e-6, 1e-9) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first, last = math.floor(low / step), max(math.floor(low / step) + 1, math.ceil(high / step + 0.1))
    return [round(k * step, 12) for k in range(first, last + 1)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13, color: str = _DARK) -> str:
    look = f'font-family="sans-serif" font-size="{size}" fill="{color}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {look}>{escape(text)}</text>'
