"""``picstore convert --measure``: print qualities and subsamplings as a table or JSON."""

from __future__ import annotations

from typing import Any

from picstore.cli.progress import show_progress
from picstore.cli.terminal import echo, echo_json
from picstore.results import QualityResult
from picstore.storage.location.resolve import Where
from picstore.verbs.measure_quality import measure_quality, quality_title


def print_quality(source: Where, images: int | None, *, as_json: bool, **given: Any) -> None:
    """Measure a sample of a source with the options of the command, and print the result."""
    with show_progress("convert") as bar:
        result = measure_quality(source, images or 200, progress=bar, **given)
    if as_json:
        echo_json(result.to_json())
    else:
        echo(*_lines(result))


def _lines(result: QualityResult) -> list[str]:
    total = result.images + (0 if result.reencode else result.lossless) + result.failed
    lossless, lines = result.lossless, []
    if lossless and result.reencode:
        lines.append(
            f"{lossless} of {total} images stay without loss, whatever the quality; with --reencode they would have:"
        )
    elif lossless:
        lines.append(f"{lossless} of {total} images stay without loss, whatever the quality; see --reencode")
    if result.failed:
        lines.append(f"{result.failed} of {total} images cannot be read")
    if not result.images:
        return [*lines, "nothing to measure"]
    each = result.source_bytes // result.images
    lines.append(f"{quality_title(result)}; the files have {each:,} bytes each")
    lines.append("subsampling  quality       bytes    saved  PSNR, dB     SSIM  5 % below")
    for row in result.qualities:
        mark = "*" if (row["subsampling"], row["quality"]) == (result.subsampling, result.quality) else " "
        lines.append(
            f"{row['subsampling']:>11}{row['quality']:>8}{mark}{row['bytes']:>12,}{row['saved']:>9.1%}"
            f"{row['psnr']:>10.2f}{row['ssim']:>9.4f}{row['ssim_low']:>11.4f}"
        )
    return [*lines, "PSNR and SSIM are of RGB, means over images; * is --subsampling and --quality"]
