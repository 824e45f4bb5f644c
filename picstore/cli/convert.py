"""``picstore convert``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.outcome import report
from picstore.errors import UsageError

if TYPE_CHECKING:
    from picstore.prepare.convert.convert import ConvertOptions
    from picstore.prepare.convert.finish import ConversionResult
    from picstore.prepare.image.settings import EncodeSettings
    from picstore.prepare.sources.inputs import Listing
    from picstore.storage.location.resolve import Location

_SOURCE_OPTIONS = ("kind", "root", "synsets", "annotations", "image_field", "label_field", "classes")

_SHAPE = ("streams", "file_size", "container_size", "seed")
_ENCODE = ("quality", "subsampling", "background", "max_pixels", "reencode", "encoder")


def color(text: str) -> tuple[int, int, int]:
    """Red, green and blue of ``ffffff``."""
    try:
        red, green, blue = bytes.fromhex(text.removeprefix("#"))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a colour; write ffffff") from error
    return red, green, blue


@click.command("convert")
@click.argument("source", metavar="SRC", type=options.place)
@click.argument("destination", metavar="DST", type=options.place, required=False)
@click.option(
    "--source",
    "kind",
    metavar="KIND",
    default="auto",
    show_default=True,
    help="What SRC is: folder (a sub-folder a class), list (lines `path label`), table (CSV or JSONL), imagenet (a tar "
    "a synset), coco, webdataset, mds, litdata, ffcv, parquet, lmdb, hdf5, recordio, tfrecord, picpoc, or a source of "
    "another package.",
)
@click.option("--root", type=options.place, help="Where the paths of a list or table begin.  [default: where it lies]")
@click.option("--synsets", type=options.place, help="File that names the synsets in the order of labels, for imagenet.")
@click.option("--annotations", type=options.place, help="COCO's JSON of objects or keypoints, for coco.")
@click.option("--image-field", metavar="NAME", help="Column or field of the image.  [default: by usual names]")
@click.option("--label-field", metavar="NAME", help="Column or field of the label.  [default: by usual names]")
@click.option("--classes", type=options.place, help="File of class names, one a line, in the order of labels.")
@click.option("--resize", metavar="SIZE", help="shorter:256, longer:512 or 256x256.  [default: sizes stay]")
@click.option("--quality", type=click.IntRange(1, 100), default=90, show_default=True, help="Of the JPEGs.")
@click.option(
    "--subsampling", type=click.Choice(["420", "422", "444"]), default="420", show_default=True, help="Of chroma."
)
@click.option("--background", type=color, default="ffffff", show_default=True, help="Behind transparent images.")
@click.option("--max-pixels", type=click.IntRange(1), default=1 << 28, show_default=True, help="Refuse larger images.")
@options.image_timeout
@click.option("--reencode", is_flag=True, help="Encode anew JPEGs that could be kept without loss.")
@click.option(
    "--encoder",
    type=click.Choice(["turbo", "mozjpeg"]),
    default="turbo",
    show_default=True,
    help="Of the JPEGs that are encoded; mozjpeg needs picstore[mozjpeg].",
)
@click.option("--streams", type=click.IntRange(1, 9999), default=16, show_default=True, help="Sub-directories.")
@click.option("--file-size", type=options.size, default="256MiB", show_default=True, help="At most, about.")
@click.option("--container-size", type=options.size, default="8MiB", show_default=True, help="Unit of reading.")
@options.seed
@options.workers
@options.engine
@click.option(
    "--shard",
    metavar="I/N",
    help="Convert only the I-th (from 0) of N parts of the work, of which `picstore merge` makes a data set.",
)
@click.option(
    "--append", is_flag=True, help="Add to the finished data set DST; settings that are not given are those of DST."
)
@click.option("--resume", is_flag=True, help="Go on with a conversion that was interrupted.")
@click.option(
    "--retry-failed",
    is_flag=True,
    help="Read again what failed in the finished data set DST, and add what is sound by now; no other input is read.",
)
@options.measure
@click.option("--dedupe", is_flag=True, help="Of inputs with equal bytes convert only the first.")
@options.max_errors
@options.as_json
def command(
    source: Location,
    destination: Location | None,
    max_errors: Callable[[int], float],
    as_json: bool,
    **settings: Any,
) -> None:
    """Turn the images of SRC, of any format, into a picstore data set in DST.

    Each becomes a baseline JPEG with restart markers; one that is a baseline JPEG, upright and not resized gets them
    without loss. What becomes of each input stands in DST/ledger.jsonl; one that cannot be read is left out and does
    not stop the others. With --measure there is no DST and nothing is written.
    """
    if (destination is None) == (settings["measure"] is None):
        raise click.UsageError("give either DST or --measure")
    if settings["plot"] is not None and settings["measure"] is None:
        raise click.UsageError("--plot goes with --measure")
    from picstore.prepare.engine import processes

    started = time.monotonic()
    if settings["append"]:
        if destination is None:
            raise click.UsageError("--append needs DST")
        settings |= _settings_of(destination)
    encode = _encode_settings(settings)
    processes.start_fork_server(*encode.warmup_modules)  # at once: it imports while this process does

    from picstore.cli.progress import Bar
    from picstore.prepare.convert.convert import ConvertOptions
    from picstore.prepare.convert.job import DatasetShape
    from picstore.prepare.sources.dedupe import mark_duplicates
    from picstore.prepare.sources.open import open_source

    shape = DatasetShape(**{name: settings[name] for name in _SHAPE})
    listing = open_source(source, **{name: settings[name] for name in _SOURCE_OPTIONS})
    for remark in listing.remarks:
        click.echo(remark, err=True)
    if destination is None:
        from picstore.cli.measure import measure

        measure(listing, encode, settings, as_json=as_json)
        return
    seconds = {"listing": time.monotonic() - started}
    if settings["dedupe"]:
        listing = mark_duplicates(listing, workers=processes.default_workers())
        seconds["dedupe"] = time.monotonic() - started - seconds["listing"]
    with options.make_engine(settings["engine"], settings["workers"]) as engine, Bar("convert") as bar:
        how = ConvertOptions(
            encode=encode, shape=shape, workers=engine, progress=bar, image_timeout=settings["image_timeout"]
        )
        converted = _run(listing, destination, settings, how)
    converted = replace(converted, seconds={**seconds, **converted.seconds})
    report(converted, destination, time.monotonic() - started, as_json=as_json, max_errors=max_errors)


def _run(listing: Listing, destination: Location, settings: dict[str, Any], how: ConvertOptions) -> ConversionResult:
    """Convert, append or try again."""
    from picstore.prepare.convert.append import append
    from picstore.prepare.convert.convert import convert
    from picstore.prepare.convert.job import Shard
    from picstore.prepare.convert.retry import retry_failed

    if settings["append"] + settings["retry_failed"] + bool(settings["shard"]) > 1:
        raise UsageError(
            "--append, --retry-failed and --shard exclude each other: the first two are for whole data sets"
        )
    if settings["append"]:
        return append(listing, destination, how, resume=settings["resume"])
    if settings["retry_failed"]:
        return retry_failed(listing, destination, how)
    shard = Shard.parse(settings["shard"]) if settings["shard"] else None
    return convert(listing, destination, how, resume=settings["resume"], shard=shard)


def _settings_of(destination: Location) -> dict[str, Any]:
    """How a data set was made, but for what the command line gives."""
    from picstore.prepare.image.settings import EncodeSettings
    from picstore.storage.manifest import read_manifest

    manifest = read_manifest(destination)
    shape = {"container_size": manifest.container_size, **manifest.provenance.get("shape", {})}
    stored = {name: value for name, value in shape.items() if name in _SHAPE}
    if manifest.encode is not None:
        encode = EncodeSettings.from_json(manifest.encode)
        stored |= {name: getattr(encode, name) for name in _ENCODE}
        stored["resize"] = manifest.encode["resize"]
    given = click.get_current_context().get_parameter_source
    return {name: value for name, value in stored.items() if given(name) is click.core.ParameterSource.DEFAULT}


def _encode_settings(settings: dict[str, Any]) -> EncodeSettings:
    from picstore.prepare.image.settings import EncodeSettings, Size

    resize = None if settings["resize"] is None else Size.parse(settings["resize"])
    return EncodeSettings(resize=resize, **{name: settings[name] for name in _ENCODE})
