"""``picstore convert --measure``: print qualities and subsamplings as a table or JSON, and plot them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from picstore.cli.terminal import echo, echo_json

if TYPE_CHECKING:
    from picstore.prepare.image.settings import EncodeSettings
    from picstore.prepare.quality import QualityReport
    from picstore.prepare.sources.inputs import Listing


def measure(listing: Listing, encode: EncodeSettings, settings: dict[str, Any], *, as_json: bool) -> None:
    """Measure a sample of a source with the options of the command, and print and plot the outcome.

    Where all images would stay without loss, it is what ``--reencode`` would make of them.
    """
    from picstore.cli.plot import draw_qualities, require_matplotlib
    from picstore.storage.location.resolve import write_whole

    if settings["plot"] is not None:
        require_matplotlib()
    report = _measure(listing, encode, settings)
    lossless = report.lossless
    if not report.images and lossless:
        encode = replace(encode, reencode=True)
        report = _measure(listing, encode, settings)
    if as_json:
        echo_json(_to_json(report, encode, lossless))
    else:
        _print(report, encode, lossless)
    if settings["plot"] is not None and report.images:
        write_whole(settings["plot"], draw_qualities(report.rows(), title=_title(report, encode)))


def _measure(listing: Listing, encode: EncodeSettings, settings: dict[str, Any]) -> QualityReport:
    from picstore.cli.progress import show_progress
    from picstore.prepare.engine import processes
    from picstore.prepare.progress import begin_stage
    from picstore.prepare.quality import measure_quality

    with show_progress("convert") as bar:
        begin_stage(bar, "measuring", min(settings["measure"], len(listing.inputs)))
        return measure_quality(
            listing,
            encode=encode,
            images=settings["measure"],
            seed=settings["seed"],
            workers=settings["workers"] or processes.default_workers(),
            image_timeout=settings["image_timeout"],
            on_progress=bar.advance,
        )


def _title(report: QualityReport, encode: EncodeSettings) -> str:
    resized = "" if encode.resize is None else f", resized to {encode.resize}"
    return f"{len(report.images):,} images, {encode.encoder}{resized}"


def _to_json(report: QualityReport, encode: EncodeSettings, lossless: int) -> dict[str, Any]:
    return {
        "images": len(report.images),
        "lossless": lossless,
        "failed": report.failed,
        "reencode": encode.reencode,
        "source_bytes": report.source_bytes,
        "encoder": encode.encoder,
        "subsampling": encode.subsampling,
        "resize": None if encode.resize is None else str(encode.resize),
        "quality": encode.quality,
        "qualities": report.rows(),
    }


def _print(report: QualityReport, encode: EncodeSettings, lossless: int) -> None:
    total = len(report.images) + report.lossless + report.failed
    if lossless and encode.reencode:
        echo(f"{lossless} of {total} images stay without loss, whatever the quality; with --reencode they would have:")
    elif lossless:
        echo(f"{lossless} of {total} images stay without loss, whatever the quality; see --reencode")
    if report.failed:
        echo(f"{report.failed} of {total} images cannot be read")
    if not report.images:
        echo("nothing to measure")
        return
    echo(f"{_title(report, encode)}; the files have {report.source_bytes // len(report.images):,} bytes each")
    echo("subsampling  quality       bytes    saved  PSNR, dB     SSIM  5 % below")
    for settings, row in zip(report.settings, report.rows(), strict=True):
        mark = "*" if settings == encode else " "
        echo(
            f"{row['subsampling']:>11}{row['quality']:>8}{mark}{row['bytes']:>12,}{row['saved']:>9.1%}"
            f"{row['psnr']:>10.2f}{row['ssim']:>9.4f}{row['ssim_low']:>11.4f}"
        )
    echo("PSNR and SSIM are of RGB, means over images; * is --subsampling and --quality")
