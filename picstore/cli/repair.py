"""``picstore repair``."""

from __future__ import annotations

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate


@click.command("repair")
@click.argument("dataset", metavar="DATASET", type=locate)
@options.root
@options.quiet
@options.as_json
def command(dataset: Location, root: Location | None, as_json: bool) -> None:
    """Make a damaged DATASET readable again.

    Reads everything. Restores a damaged or missing manifest from its copy, rebuilds a damaged index from the files,
    writes missing or wrong counts of labels, and deletes the records that cannot be read, as `picstore delete` does.
    Writes no file of images.
    """
    from picstore.cli.progress import show_progress
    from picstore.verbs.repair import repair

    with show_progress("repair") as bar:
        done = repair(dataset, root=root, progress=bar)
    if as_json:
        echo_json(done.to_json())
        return
    for loss in done.losses:
        echo(f"{loss.file} at byte {loss.offset}: {loss.problem} ({loss.records} records deleted)")
    for restored, text in (
        (done.manifest, "manifest restored from its copy"),
        (done.copy, "copy of the manifest written"),
        (done.index, "index rebuilt from the files"),
        (done.counts, "counts of labels written"),
    ):
        if restored:
            echo(f"{dataset}: {text}")
    echo(f"{dataset}: {done.records_lost:,} lost records deleted, {done.images:,} images left")
