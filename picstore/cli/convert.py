"""``picstore convert``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.conversion_summary import report_outcome
from picstore.prepare.image.encode_settings import ENCODERS
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.results import ConvertResult

# Options that a measurement does not have.
_OF_DATASET = (
    "streams",
    "file_size",
    "container_size",
    "engine",
    "shard",
    "resume",
    "retry_failed",
    "dedupe",
    "max_errors",
)
_NOT_OF_APPEND = ("shard", "retry_failed")
# Options of an append that are the data set's unless they are given.
_SETTINGS = (
    *("resize", "quality", "subsampling", "background", "max_pixels", "reencode", "encoder"),
    *("streams", "file_size", "container_size", "seed"),
)


@click.command("convert")
@click.argument("source", metavar="SRC", type=locate)
@click.argument("destination", metavar="DST", type=locate, required=False)
@options.source
@click.option(
    "--resize",
    metavar="SIZE",
    help="Size of the stored images: shorter:256 or longer:512 (keep the ratio, never enlarge), or 256x256.  "
    "[default: size of the source image]",
)
@click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True, help="JPEG quality.")
@click.option(
    "--subsampling",
    type=click.Choice(["420", "422", "444"]),
    default="420",
    show_default=True,
    help="Chroma subsampling.",
)
@click.option(
    "--background",
    metavar="COLOR",
    type=options.color,
    default="ffffff",
    show_default=True,
    help="Background color of transparent images.",
)
@options.max_pixels
@options.image_timeout
@click.option("--reencode", is_flag=True, help="Re-encode JPEGs that could be stored without loss.")
@click.option(
    "--encoder",
    type=click.Choice(ENCODERS),
    default="turbo",
    show_default=True,
    help="JPEG encoder; mozjpeg needs picstore[mozjpeg].",
)
@click.option(
    "--streams",
    type=click.IntRange(1, 9999),
    default=16,
    show_default=True,
    help="Number of sub-directories that images are spread over.",
)
@options.file_size
@options.container_size
@options.seed
@options.workers
@options.engine
@click.option(
    "--shard",
    metavar="I/N",
    help="Convert only shard I (from 0) of N; `picstore merge` joins the shards.  [default: all of SRC]",
)
@click.option(
    "--append", is_flag=True, help="Add the images to the finished data set DST; other options default to its settings."
)
@click.option("--resume", is_flag=True, help="Continue an interrupted conversion.")
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Convert the failed inputs of the finished data set DST again, and read no others.",
)
@click.option(
    "--measure",
    type=click.IntRange(1),
    is_flag=False,
    flag_value=200,
    metavar="[N]",
    help="Encode N images (200 if N is omitted) at several qualities and subsamplings, print PSNR, SSIM and bytes, "
    "and convert nothing.",
)
@click.option(
    "--plot", type=options.PATH, metavar="FILE", help="SVG file for a plot of --measure; needs picstore[plot]."
)
@click.option("--dedupe", is_flag=True, help="Convert only the first of several inputs with equal bytes.")
@options.max_errors
@options.quiet
@options.as_json
def command(
    source: Location,
    destination: Location | None,
    append: bool,
    measure: int | None,
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Convert the images of SRC, in many formats, to a picstore data set DST.

    Every image becomes a baseline JPEG with restart markers. One that is baseline, upright, of a usual sampling and not
    resized keeps its coefficients. DST/ledger.jsonl lists the status of every input; an input that fails is left out
    and does not stop the conversion. With --measure there is no DST, and nothing is written.
    """
    if append and destination is None:
        raise click.UsageError("--append needs DST")
    if (destination is None) == (measure is None):
        raise click.UsageError("give either DST or --measure")
    if plot is not None and measure is None:
        raise click.UsageError("--plot goes with --measure")
    if append + given["retry_failed"] + bool(given["shard"]) > 1:
        raise click.UsageError("--append, --retry-failed and --shard exclude each other")
    if destination is None:
        from picstore.cli.measure import print_quality

        of_images = {name: value for name, value in given.items() if name not in _OF_DATASET}
        print_quality(source, measure, as_json=as_json, plot=plot, **of_images)
        return
    run: Callable[..., ConvertResult]
    if append:
        from picstore.verbs.append import append as run

        settings = {name: value for name, value in given.items() if name not in _SETTINGS or _is_given(name)}
        given = {name: value for name, value in settings.items() if name not in _NOT_OF_APPEND}
    else:
        from picstore.verbs.convert import convert as run
    report_outcome("convert", lambda bar: run(source, destination, progress=bar, **given), as_json=as_json)


def _is_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT
