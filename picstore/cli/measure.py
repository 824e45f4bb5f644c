"""``picstore convert --measure``: a table of qualities and subsamplings, as text, JSON or a plot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from picstore.prepare.image.settings import EncodeSettings
    from picstore.prepare.quality import Measured
    from picstore.prepare.sources.inputs import Listing


def measure(listing: Listing, encode: EncodeSettings, settings: dict[str, Any], *, as_json: bool) -> None:
    """Measure a sample of a source with the options of the command, and print and draw the outcome."""
    from picstore.cli.plot import draw_qualities, require_matplotlib
    from picstore.cli.progress import Bar
    from picstore.prepare.engine import processes
    from picstore.prepare.quality import measure_quality
    from picstore.storage.location.resolve import write_whole

    if settings["plot"] is not None:
        require_matplotlib()
    with Bar("measure") as bar:
        bar.set_total(min(settings["measure"], len(listing.inputs)), 0)
        measured = measure_quality(
            listing,
            encode=encode,
            images=settings["measure"],
            seed=settings["seed"],
            workers=settings["workers"] or processes.default_workers(),
            image_timeout=settings["image_timeout"],
            on_progress=bar.advance,
        )
    if as_json:
        click.echo(json.dumps(_to_json(measured, encode), allow_nan=False))
    else:
        _print(measured, encode)
    if settings["plot"] is not None and measured.losses:
        write_whole(settings["plot"], draw_qualities(measured.rows(), title=_title(measured, encode)))


def _title(measured: Measured, encode: EncodeSettings) -> str:
    resized = "" if encode.resize is None else f", resized to {encode.resize}"
    return f"{len(measured.losses):,} images, {encode.encoder}{resized}"


def _to_json(measured: Measured, encode: EncodeSettings) -> dict[str, Any]:
    return {
        "images": len(measured.losses),
        "lossless": measured.lossless,
        "failed": measured.failed,
        "source_bytes": measured.source_bytes,
        "encoder": encode.encoder,
        "subsampling": encode.subsampling,
        "resize": None if encode.resize is None else str(encode.resize),
        "quality": encode.quality,
        "qualities": measured.rows(),
    }


def _print(measured: Measured, encode: EncodeSettings) -> None:
    total = len(measured.losses) + measured.lossless + measured.failed
    if measured.lossless:
        click.echo(f"{measured.lossless} of {total} images stay without loss, whatever the quality; see --reencode")
    if measured.failed:
        click.echo(f"{measured.failed} of {total} images cannot be read")
    if not measured.losses:
        click.echo("nothing to measure")
        return
    click.echo(
        f"{_title(measured, encode)}; the files have {measured.source_bytes // len(measured.losses):,} bytes each"
    )
    click.echo(
        f"{'subsampling':>11}{'quality':>9}{'bytes':>12}{'saved':>9}{'PSNR, dB':>10}{'SSIM':>9}{'5 % below':>11}"
    )
    for settings, row in zip(measured.tried, measured.rows(), strict=True):
        mark = "*" if settings == encode else " "
        click.echo(
            f"{row['subsampling']:>11}{row['quality']:>8}{mark}{row['bytes']:>12,}{row['saved']:>9.1%}"
            f"{row['psnr']:>10.2f}{row['ssim']:>9.4f}{row['ssim_low']:>11.4f}"
        )
    click.echo("PSNR and SSIM are of RGB, means over images; * is --subsampling and --quality")
