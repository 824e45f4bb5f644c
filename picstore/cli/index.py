"""``picstore index``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from picstore.cli import options
from picstore.cli.outcome import report_outcome
from picstore.cli.terminal import echo
from picstore.prepare.image.settings import EncodeSettings
from picstore.storage.location.resolve import Location, locate


@click.command("index")
@click.argument("source", metavar="SRC", type=locate)
@click.argument("destination", metavar="DST", type=locate)
@options.source
@click.option(
    "--shuffle/--no-shuffle",
    default=None,
    help="Whether each container refers to images from all of SRC, or to neighbours, which are read together.  "
    "[default: shuffle images with a file each]",
)
@options.max_pixels
@options.image_timeout
@options.file_size
@options.container_size
@options.seed
@options.workers
@click.option("--resume", is_flag=True, help="Continue an interrupted index.")
@options.max_errors
@options.quiet
@options.as_json
def command(
    source: Location, destination: Location, max_errors: Callable[[int], float], as_json: bool, **arguments: Any
) -> None:
    """Index the images of SRC in DST, a data set that refers to them where they lie.

    Loader, verify and all other readers take DST as they take a converted data set, as long as SRC is there.
    `picstore convert DST NEW` makes one of it, with the same order and ids.
    """
    from picstore.cli.progress import show_progress
    from picstore.prepare.convert.convert import ConvertOptions, convert
    from picstore.prepare.convert.job import DatasetShape
    from picstore.prepare.convert.reference_records import is_of_files, references_root, require_references, shuffled
    from picstore.prepare.sources.open import open_source

    started = time.monotonic()
    source = source.absolute()
    shape = {name: arguments[name] for name in ("file_size", "container_size", "seed")}
    with options.make_engine("local", arguments["workers"]) as engine, show_progress("index") as bar:
        bar.begin_stage("listing")
        listing = open_source(source, **{name: arguments[name] for name in options.SOURCE})
        for remark in listing.remarks:
            echo(remark, err=True)
        require_references(listing)
        mixed = arguments["shuffle"]
        if is_of_files(listing) if mixed is None else mixed:
            listing = shuffled(listing, arguments["seed"])
        seconds = {"listing": time.monotonic() - started}
        index_options = ConvertOptions(
            encode=EncodeSettings(max_pixels=arguments["max_pixels"]),
            shape=DatasetShape(streams=1, **shape),
            workers=engine,
            progress=bar,
            image_timeout=arguments["image_timeout"],
            references=references_root(source, arguments["root"]),
        )
        result = convert(listing, destination, index_options, resume=arguments["resume"])
    result = replace(result, seconds={**seconds, **result.seconds})
    report_outcome(result, destination, time.monotonic() - started, as_json=as_json, max_errors=max_errors)
