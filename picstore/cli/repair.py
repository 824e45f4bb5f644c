"""``picstore repair``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from picstore.cli import options

if TYPE_CHECKING:
    from picstore.storage.location import Location


@click.command("repair")
@click.argument("dataset", metavar="DATASET", type=options.place)
@options.as_json
def command(dataset: Location, as_json: bool) -> None:
    """Make all of DATASET readable again that is left of it.

    Reads everything. A damaged index is made anew from the files, and records that cannot be read are deleted as by
    `picstore delete`, and named. No file of images is written again.
    """
    from picstore.cli.progress import Bar
    from picstore.prepare.repair import repair

    with Bar("repair") as bar:
        done = repair(dataset, progress=bar)
    if as_json:
        result = {"dataset": str(dataset), "uuid": done.dataset.uuid, "images": len(done.dataset)}
        result |= {"index": done.index, "records_lost": done.lost, "losses": [asdict(loss) for loss in done.losses]}
        click.echo(json.dumps(result))
        return
    for loss in done.losses:
        click.echo(f"{loss.file} at byte {loss.offset}: {loss.problem} ({loss.records} records deleted)")
    anew = "index written anew, " if done.index else ""
    click.echo(f"{dataset}: {anew}{done.lost:,} lost records deleted, {len(done.dataset):,} images left")
