"""``picstore shuffle``."""

from __future__ import annotations

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
def command(
    sources: tuple[Location, ...],
    destination: Location,
    method: str,
    seed: int,
    selection: options.Selection,
    workers: int | None,
    engine: str,
    as_json: bool,
) -> None:
    """Write a shuffled copy of the data set SRC, or of some of its images, to DST.

    Several data sets become one, with classes joined by name. Each worker holds one file in memory.
    """
    from picstore.cli.progress import show_progress
    from picstore.prepare.upkeep.shuffle import shuffle

    with options.make_engine(engine, workers) as processes, show_progress("shuffle") as bar:
        dataset = selection.open(*sources)
        manifest = shuffle(dataset, destination, seed=seed, method=method, workers=processes, progress=bar)
    if as_json:
        result = {"dataset": str(destination), "uuid": manifest.uuid, "images": manifest.images}
        echo_json({**result, "shuffle": manifest.shuffle[-1]})
    else:
        echo(f"{destination}: {manifest.images:,} images shuffled ({method}, seed {seed})")
