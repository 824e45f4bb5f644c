"""``picstore delete``."""

from __future__ import annotations

from pathlib import Path

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate


@click.command("delete")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.option(
    "--id",
    "ids",
    type=click.IntRange(0, (1 << 63) - 1),
    multiple=True,
    help="Id of an image to delete; may be repeated.",
)
@click.option("--ids", "file", metavar="FILE", type=options.PATH, help="File of ids to delete, one per line.")
@options.root
@options.as_json
def command(dataset: Location, ids: tuple[int, ...], file: Path | None, root: Location | None, as_json: bool) -> None:
    """Delete images from DATASET.

    A small file lists the deleted images, and readers skip them; no image is rewritten. `picstore shuffle` leaves them
    out of its copy. Readers that have the data set open keep the version that they opened.
    """
    from picstore.verbs.delete import delete, read_ids

    result = delete(dataset, [*ids, *(read_ids(file) if file is not None else ())], root=root)
    if as_json:
        echo_json(result.to_json())
    else:
        echo(f"{dataset}: {result.deleted:,} images deleted, {result.images:,} left")
