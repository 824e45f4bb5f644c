"""Plot of ``measure_quality``: PSNR and SSIM over bytes as SVG, drawn by matplotlib (the extra ``plot``)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from picstore.errors import missing_extra

_COLORS = {"420": "#1f6fb4", "444": "#c8553d", "422": "#3f8f4f"}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "picstore",  # the same figures give the same file
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
}


def require_matplotlib() -> None:
    """Raise MissingDependency unless matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise missing_extra("a plot needs matplotlib", "plot") from error


def draw_qualities(rows: Sequence[dict[str, Any]], *, title: str) -> bytes:
    """Draw PSNR and SSIM over the mean bytes of an image, as SVG: a line per subsampling, a point per quality.

    The axis of bytes is logarithmic: qualities are about evenly spaced on it, and a saving is a distance. ``rows`` are
    ``QualityReport.rows``, at least one.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(6.4, 7), layout="constrained")
        above, below = figure.subplots(2, sharex=True)
        for subsampling in dict.fromkeys(row["subsampling"] for row in rows):
            chosen = [row for row in rows if row["subsampling"] == subsampling]
            sizes = [row["bytes"] / 1000 for row in chosen]
            line: Any = {"color": _COLORS[subsampling], "label": f"— {':'.join(subsampling)}"}
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
