"""``picstore verify``."""

from __future__ import annotations

from typing import Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate

_DAMAGE_FOUND = 3


@click.command("verify")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.option("--decode", is_flag=True, help="Decode every image too, and compare it with the index.")
@options.root
@options.workers
@options.engine
@options.quiet
@options.as_json
@click.pass_context
def command(context: click.Context, /, dataset: Location, as_json: bool, **given: Any) -> None:
    """Read all of DATASET, check every checksum, and report file and offset of all damage.

    The exit code is 3 if there is damage.
    """
    from picstore.cli.progress import show_progress
    from picstore.verbs.verify import verify

    with show_progress("verify") as bar:
        done = verify(dataset, progress=bar, **given)
    if as_json:
        echo_json(done.to_json())
    else:
        for each in done.damage:
            echo(f"{each.file} at byte {each.offset}: {each.problem} ({each.records_lost} records lost)")
        for remark in done.remarks:
            echo(f"{dataset}: {remark}")
        state = "no damage" if done.ok else f"{len(done.damage)} damaged places, {done.records_lost:,} records lost"
        echo(f"{dataset}: {done.images:,} images in {done.files:,} files, {state}")
    if not done.ok:
        context.exit(_DAMAGE_FOUND)
