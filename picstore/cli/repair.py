"""``picstore repair``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from picstore.cli import options

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Location


@click.command("repair")
@click.argument("dataset", metavar="DATASET", type=options.place)
@click.option("--classes", metavar="FILE", type=options.place, help="Class names, one a line, where these are lost.")
@options.as_json
def command(dataset: Location, classes: Location | None, as_json: bool) -> None:
    """Make all of DATASET readable again that is left of it.

    Reads everything. A damaged manifest or index is made anew from the files, and records that cannot be read are
    deleted as by `picstore delete`, and named. No file of images is written again.
    """
    from picstore.cli.progress import Bar
    from picstore.prepare.sources.open import read_names
    from picstore.prepare.upkeep.repair import repair

    names = None if classes is None else read_names(classes)
    with Bar("repair") as bar:
        done = repair(dataset, classes=names, progress=bar)
    if as_json:
        result = {"dataset": str(dataset), "uuid": done.dataset.uuid, "images": len(done.dataset)}
        result |= {"manifest": done.manifest, "remarks": done.remarks, "index": done.index}
        result |= {"records_lost": done.lost, "losses": [asdict(loss) for loss in done.losses]}
        click.echo(json.dumps(result))
        return
    for loss in done.losses:
        click.echo(f"{loss.file} at byte {loss.offset}: {loss.problem} ({loss.records} records deleted)")
    for remark in done.remarks:
        click.echo(f"manifest: {remark}")
    written = [name for name, anew in (("manifest", done.manifest), ("index", done.index)) if anew]
    anew = f"{' and '.join(written)} written anew, " if written else ""
    click.echo(f"{dataset}: {anew}{done.lost:,} lost records deleted, {len(done.dataset):,} images left")
