"""``picstore convert``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.outcome import report_outcome
from picstore.cli.terminal import echo, on_terminal
from picstore.errors import UsageError
from picstore.prepare.image.settings import ENCODERS, EncodeSettings, Size
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.prepare.convert.convert import ConvertOptions
    from picstore.prepare.convert.finish import ConversionResult
    from picstore.prepare.progress import Progress
    from picstore.prepare.sources.inputs import Listing

_SHAPE_OPTIONS = ("streams", "file_size", "container_size", "seed")
_ENCODE_OPTIONS = ("quality", "subsampling", "background", "max_pixels", "reencode", "encoder")


def parse_color(text: str) -> tuple[int, int, int]:
    """Parse ``ffffff`` to red, green and blue."""
    try:
        red, green, blue = bytes.fromhex(text.removeprefix("#"))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a colour; write ffffff") from error
    return red, green, blue


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
    type=parse_color,
    default="ffffff",
    show_default=True,
    help="Background colour of transparent images.",
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
    source: Location, destination: Location | None, max_errors: Callable[[int], float], as_json: bool, **arguments: Any
) -> None:
    """Convert the images of SRC, in many formats, to a picstore data set DST.

    Every image becomes a baseline JPEG with restart markers. One that is baseline, upright, of a usual sampling and not
    resized keeps its coefficients. DST/ledger.jsonl lists the status of every input; an input that fails is left out
    and does not stop the conversion. With --measure there is no DST, and nothing is written.
    """
    if (destination is None) == (arguments["measure"] is None):
        raise click.UsageError("give either DST or --measure")
    if arguments["plot"] is not None and arguments["measure"] is None:
        raise click.UsageError("--plot goes with --measure")
    from picstore.prepare.convert.fork_server import start_fork_server

    started = time.monotonic()
    if arguments["append"]:
        if destination is None:
            raise click.UsageError("--append needs DST")
        arguments |= _settings_of(destination)
    resize = None if arguments["resize"] is None else Size.parse(arguments["resize"])
    encode = EncodeSettings(resize=resize, **{name: arguments[name] for name in _ENCODE_OPTIONS})
    start_fork_server(encode)  # it imports while this process does

    from picstore.cli.progress import show_progress
    from picstore.prepare.convert.convert import ConvertOptions
    from picstore.prepare.convert.job import DatasetShape
    from picstore.prepare.engine.processes import default_workers, wait_for_fork_server
    from picstore.prepare.sources.dedupe import mark_duplicates

    shape = DatasetShape(**{name: arguments[name] for name in _SHAPE_OPTIONS})
    if destination is None:
        from picstore.cli.measure import measure

        with show_progress("convert") as bar:
            listing = _list(source, arguments, bar)
        measure(listing, encode, arguments, as_json=as_json)
        return
    with show_progress("convert") as bar:
        listing = _list(source, arguments, bar)
        seconds = {"listing": time.monotonic() - started}
        if arguments["dedupe"]:
            bar.begin_stage("dedupe")
            listing = mark_duplicates(listing, workers=default_workers())
            seconds["dedupe"] = time.monotonic() - started - seconds["listing"]
        if on_terminal():
            wait_for_fork_server()  # else two bars would overwrite each other
        with options.make_engine(arguments["engine"], arguments["workers"]) as engine:
            convert_options = ConvertOptions(
                encode=encode, shape=shape, workers=engine, progress=bar, image_timeout=arguments["image_timeout"]
            )
            result = _convert(listing, destination, convert_options, arguments)
    result = replace(result, seconds={**seconds, **result.seconds})
    report_outcome(result, destination, time.monotonic() - started, as_json=as_json, max_errors=max_errors)


def _list(source: Location, arguments: dict[str, Any], progress: Progress) -> Listing:
    """List the inputs of a source, and print the source's remarks on them."""
    from picstore.prepare.sources.open import open_source

    progress.begin_stage("listing")
    listing = open_source(source, **{name: arguments[name] for name in options.SOURCE})
    for remark in listing.remarks:
        echo(remark, err=True)
    return listing


def _convert(
    listing: Listing, destination: Location, convert_options: ConvertOptions, arguments: dict[str, Any]
) -> ConversionResult:
    """Convert, append or retry."""
    from picstore.prepare.convert.append import append
    from picstore.prepare.convert.convert import convert
    from picstore.prepare.convert.job import Shard
    from picstore.prepare.convert.retry import retry_failed

    if arguments["append"] + arguments["retry_failed"] + bool(arguments["shard"]) > 1:
        raise UsageError("--append, --retry-failed and --shard exclude each other")
    if arguments["append"]:
        return append(listing, destination, convert_options, resume=arguments["resume"])
    if arguments["retry_failed"]:
        return retry_failed(listing, destination, convert_options)
    shard = Shard.parse(arguments["shard"]) if arguments["shard"] else None
    return convert(listing, destination, convert_options, resume=arguments["resume"], shard=shard)


def _settings_of(destination: Location) -> dict[str, Any]:
    """Return the settings of a data set, except those that the command line gives."""
    from picstore.storage.manifest import read_manifest

    manifest = read_manifest(destination)
    shape = {"container_size": manifest.container_size, **manifest.provenance.get("shape", {})}
    stored = {name: value for name, value in shape.items() if name in _SHAPE_OPTIONS}
    if manifest.encode is not None:
        encode = EncodeSettings.from_json(manifest.encode)
        stored |= {name: getattr(encode, name) for name in _ENCODE_OPTIONS}
        stored["resize"] = manifest.encode["resize"]
    given = click.get_current_context().get_parameter_source
    return {name: value for name, value in stored.items() if given(name) is click.core.ParameterSource.DEFAULT}
