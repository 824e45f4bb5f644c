"""``picstore shuffle``."""

from __future__ import annotations

from typing import Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate


@click.command("shuffle")
@click.argument("sources", metavar="SRC…", type=locate, nargs=-1, required=True)
@click.argument("destination", metavar="DST", type=locate)
@click.option(
    "--method",
    type=click.Choice(["transpose", "uniform"]),
    default="transpose",
    show_default=True,
    help="Shuffling method. transpose: permute each file and transpose streams × files; one read, one write. "
    "uniform: draw file and place of each image anew; two reads, two writes.",
)
@options.seed
@options.selection
@options.workers
@options.engine
@options.quiet
@options.as_json
def command(sources: tuple[Location, ...], destination: Location, as_json: bool, **given: Any) -> None:
    """Write a shuffled copy of the data set SRC, or of some of its images, to DST.

    Several data sets become one, with classes joined by name. Each worker holds one file in memory.
    """
    from picstore.cli.progress import show_progress
    from picstore.verbs.shuffle import shuffle

    with show_progress("shuffle") as bar:
        done = shuffle(sources, destination, progress=bar, **given)
    if as_json:
        echo_json(done.to_json())
    else:
        method, seed = done.shuffle["method"], done.shuffle["seed"]
        echo(f"{done.dataset}: {done.images:,} images shuffled ({method}, seed {seed})")
