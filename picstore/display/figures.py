"""Figures of matplotlib (the extra ``plot``): images with their annotations, histograms, and measured qualities.

Figures open no window: a notebook shows a figure that is the value of a cell, and ``savefig`` writes it to a file.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from picstore.arrays import F64, U8, Array
from picstore.display.histograms import Histogram
from picstore.errors import missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

_CELL = 1.9  # Width in inches of a cell of the grid, which shows one tile.
_TALLEST = 1.1  # Largest ratio of height to width of a tile's cell; a taller image is made smaller.
_TITLE = 0.25  # Height of the title above a row of tiles, in inches.
_MARGIN = 0.1  # Margin around a tile, in inches.
_MAX_TITLE = 28
_MAX_CLASSES = 24
_BAR = "#1f6fb4"
_COLORS = ("#f3c13a", "#3fc1c9", "#ff6b6b", "#7bd389", "#b892ff", "#ff9f5a", "#59a5ff", "#f78fb3")
_TITLES = {"width": "width, pixels", "height": "height, pixels", "bytes": "bytes of the JPEG", "label": "class"}
_QUALITY_COLORS = {"420": "#1f6fb4", "444": "#c8553d", "422": "#3f8f4f"}
_SVG_SETTINGS: Any = {
    "svg.fonttype": "none",  # Write text as text rather than as outlines of letters.
    "svg.hashsalt": "picstore",  # Replace random ids in SVG files by fixed ids, so that equal figures are equal files.
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """Image in a figure, with annotations to draw on top.

    Attributes:
        pixels: uint8 (h, w, 3), at full or reduced size.
        title: text to print above the image.
        size: width and height of the full-size image, by default those of ``pixels``. The coordinates below are in
            pixels of the full-size image.
        boxes: left, top, right and bottom of k boxes, float64 (k, 4).
        names: names of the boxes, or an empty sequence.
        outlines: polygons, each an array of its corners' x and y, float64 (p, 2).
        points: x and y of keypoints, float64 (m, 2).
        mask: segmentation mask, integers (h, w); each value has its own color, and 0 is transparent.
    """

    pixels: U8
    title: str = ""
    size: tuple[int, int] | None = None
    boxes: F64 | None = None
    names: Sequence[str] = ()
    outlines: Sequence[F64] = ()
    points: F64 | None = None
    mask: Array | None = None


def draw_tiles(tiles: Sequence[Tile], *, columns: int = 4, rows: Sequence[str] = ()) -> Figure:
    """Draw tiles in a grid with ``columns`` tiles in a row; write the names ``rows`` to the left of the grid's rows."""
    columns = max(1, min(columns, len(tiles)))
    listed = [tiles[k : k + columns] for k in range(0, len(tiles), columns)]
    heights = [max(min(_ratio(tile), _TALLEST) for tile in row) * _CELL for row in listed]
    left = _MARGIN + (_TITLE if rows else 0)
    width = left + columns * (_CELL + _MARGIN)
    height = _MARGIN + sum(heights) + len(listed) * (_TITLE + _MARGIN)
    figure = _make_figure(width, max(height, _CELL))
    top = figure.get_figheight()
    for number, (row, high) in enumerate(zip(listed, heights, strict=True)):
        top -= _TITLE + high
        for k, tile in enumerate(row):
            x = left + k * (_CELL + _MARGIN)
            axes = figure.add_axes((x / width, top / height, _CELL / width, high / height), anchor="N", frame_on=False)
            _draw_tile(axes, tile)
        if number < len(rows):
            at: Any = {"rotation": 90, "ha": "center", "va": "center", "fontsize": 8, "parse_math": False}
            figure.text((left - _TITLE / 2) / width, (top + high / 2) / height, shorten(rows[number]), **at)
        top -= _MARGIN
    return figure


def draw_histograms(histograms: Mapping[str, Histogram], *, title: str) -> Figure:
    """Draw histograms as bar charts: charts of named values side by side, charts of numbers stacked to their right."""
    named = [name for name, each in histograms.items() if not each.edges and each.counts]
    binned = [name for name, each in histograms.items() if each.edges]
    figure = _make_figure(9, 1 + 1.6 * max(1, len(binned)), layout="constrained")
    figure.suptitle(shorten(title, 80), fontsize=10, parse_math=False)
    if not named and not binned:
        return figure
    mosaic: Any = [[*named, name] for name in binned] or [named]
    for name, axes in figure.subplot_mosaic(mosaic, width_ratios=[1] * len(named) + [1.6] * bool(binned)).items():
        axes.set_title(_TITLES.get(name, name), fontsize=9, loc="left", parse_math=False)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        draw = _draw_names if name in named else _draw_bins
        draw(axes, histograms[name])
    return figure


def require_matplotlib() -> None:
    """Raise MissingDependency unless matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise missing_extra("a plot needs matplotlib", "plot") from error


def draw_qualities(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draw PSNR and SSIM by mean bytes per image, as SVG: a line per chroma subsampling, a point per JPEG quality.

    ``rows`` are ``QualityReport.rows``, not empty.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with rc_context(_SVG_SETTINGS):
        figure = Figure(figsize=(6.4, 7), layout="constrained")
        above, below = figure.subplots(2, sharex=True)
        for subsampling in dict.fromkeys(row["subsampling"] for row in rows):
            chosen = [row for row in rows if row["subsampling"] == subsampling]
            sizes = [row["bytes"] / 1000 for row in chosen]
            line: Any = {"color": _QUALITY_COLORS[subsampling], "label": f"— {':'.join(subsampling)}"}
            for axes, name in ((above, "psnr"), (below, "ssim")):
                axes.plot(sizes, [row[name] for row in chosen], marker="o", markersize=4, **line)
                for row, size in zip(chosen, sizes, strict=True):
                    offset = (0, -12 if subsampling == "444" else 6)
                    text: Any = {"textcoords": "offset points", "ha": "center", "fontsize": 7, "color": line["color"]}
                    axes.annotate(str(row["quality"]), (size, row[name]), xytext=offset, **text)
            below.plot(sizes, [row["ssim_low"] for row in chosen], "--", color=line["color"])
        above.set(title="PSNR of RGB, dB", xscale="log")
        below.set(title="SSIM of RGB: mean, and dashed the 5 % below", xlabel="kB per image; the numbers are qualities")
        below.xaxis.set_major_formatter("{x:g}")
        below.xaxis.set_minor_formatter("{x:g}")
        above.legend(handlelength=0, handletextpad=0, labelcolor="linecolor", markerscale=0)
        figure.suptitle(title)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def shorten(text: str, limit: int = _MAX_TITLE) -> str:
    """Shorten text to ``limit`` characters, and replace unprintable characters, such as line ends, by "·"."""
    visible = "".join(each if each.isprintable() else "·" for each in text)
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def _make_figure(width: float, height: float, **options: Any) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("show and summary need matplotlib", "plot") from error

    class PngFigure(Figure):
        """Matplotlib figure that notebooks show as a PNG, whichever backend of matplotlib is selected."""

        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=110)
            return out.getvalue()

    return PngFigure(figsize=(width, height), facecolor="white", **options)


def _ratio(tile: Tile) -> float:
    width, height = tile.size or (tile.pixels.shape[1], tile.pixels.shape[0])
    return height / width


def _draw_tile(axes: Axes, tile: Tile) -> None:
    from matplotlib.patches import Polygon, Rectangle

    width, height = tile.size or (tile.pixels.shape[1], tile.pixels.shape[0])
    axes.imshow(tile.pixels, extent=(0, width, height, 0), interpolation="antialiased")
    axes.set_title(shorten(tile.title), fontsize=8, pad=3, parse_math=False)
    if tile.mask is not None:
        axes.imshow(_colored(tile.mask), extent=(0, width, height, 0), interpolation="nearest")
    for k, outline in enumerate(tile.outlines):
        axes.add_patch(Polygon(outline, fill=False, linewidth=1, edgecolor=_COLORS[k % len(_COLORS)]))
    for k, (left, top, right, bottom) in enumerate(tile.boxes if tile.boxes is not None else ()):
        color = _COLORS[k % len(_COLORS)]
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, linewidth=1.4, edgecolor=color))
        if k < len(tile.names):
            label: Any = {"facecolor": color, "edgecolor": "none", "pad": 0.8}
            text: Any = {"fontsize": 6, "va": "top", "bbox": label, "clip_on": True, "parse_math": False}
            axes.text(left, top, shorten(tile.names[k]), **text)
    if tile.points is not None and len(tile.points):
        axes.scatter(tile.points[:, 0], tile.points[:, 1], s=9, c=_COLORS[0], edgecolors="black", linewidths=0.4)
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=(), yticks=())


def _colored(mask: Array) -> U8:
    """Convert a segmentation mask to half-transparent colors, uint8 RGBA (h, w, 4)."""
    palette = np.array([tuple(bytes.fromhex(color[1:])) for color in _COLORS], np.uint8)
    codes = mask.astype(np.int64)
    alpha = np.where(codes != 0, 128, 0).astype(np.uint8)
    return np.concatenate([palette[codes % len(palette)], alpha[..., None]], axis=-1)


def _draw_bins(axes: Axes, histogram: Histogram) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    edges = np.array(histogram.edges)
    if len(edges) == 2 and edges[0] == edges[1]:
        edges = edges + np.array([-0.5, 0.5])
    axes.bar(edges[:-1], histogram.counts, np.diff(edges), align="edge", color=_BAR, edgecolor="white", linewidth=0.3)
    if edges[0] > 0 and edges[-1] / edges[0] >= 12:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _draw_names(axes: Axes, histogram: Histogram) -> None:
    shown = min(len(histogram.counts), _MAX_CLASSES)
    names = [name or str(value) for name, value in zip(histogram.names, histogram.values, strict=True)][:shown]
    axes.barh(range(shown), histogram.counts[:shown], color=_BAR, height=0.75)
    axes.set_yticks(range(shown), [shorten(name, 18) for name in names], parse_math=False)
    axes.invert_yaxis()
    axes.margins(y=0.02)
    left = len(histogram.counts) - shown + histogram.others
    if left:
        axes.set_xlabel(f"and {left:,} more", fontsize=7)
    axes.xaxis.set_major_formatter("{x:,.0f}")
