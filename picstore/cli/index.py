"""``picstore index``."""

from __future__ import annotations

from typing import Any

import click

from picstore.cli import options
from picstore.cli.conversion_summary import report_outcome
from picstore.storage.location.resolve import Location, locate


@click.command("index")
@click.argument("source", metavar="SRC", type=locate)
@click.argument("destination", metavar="DST", type=locate)
@options.source
@click.option(
    "--shuffle/--no-shuffle",
    default=None,
    help="Whether each container refers to images from all of SRC, or to neighbors, which are read together.  "
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
def command(source: Location, destination: Location, as_json: bool, **given: Any) -> None:
    """Index the images of SRC in DST, a data set that refers to them where they lie.

    Loader, verify and all other readers take DST as they take a converted data set, as long as SRC is there.
    `picstore convert DST NEW` makes one of it, with the same order and ids.
    """
    from picstore.verbs.index import index

    report_outcome("index", lambda bar: index(source, destination, progress=bar, **given), as_json=as_json)
