"""``picstore export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json

_DAMAGE_FOUND = 3


@click.command("export")
@click.argument("dataset", metavar="DATASET", type=options.PATH)
@click.argument("out", metavar="OUT", type=options.PATH)
@click.option(
    "--format",
    type=click.Choice(["folder", "webdataset", "mds", "parquet"]),
    required=True,
    help="Format of OUT: folder (a sub-folder per class, records.jsonl), webdataset (tars), mds (MosaicML shards) or "
    "parquet (Hugging Face).",
)
@click.option(
    "--shard-size",
    type=options.size,
    default="256MiB",
    show_default=True,
    help="Target size of each tar, shard or Parquet file.",
)
@options.selection
@options.root
@options.workers
@options.engine
@options.quiet
@options.as_json
@click.pass_context
def command(context: click.Context, /, dataset: Path, out: Path, as_json: bool, **given: Any) -> None:
    """Export the JPEGs of DATASET unchanged, with labels, extras and attachments, to a new folder OUT.

    Damaged records are left out; the exit code is then 3.
    """
    from picstore.cli.progress import show_progress
    from picstore.verbs.export import export

    with show_progress("export") as bar:
        done = export(dataset, out, progress=bar, **given)
    if as_json:
        echo_json(done.to_json())
    else:
        lost = f", {done.records_lost:,} damaged records left out" if done.records_lost else ""
        size = f"{done.bytes / 1e6:,.1f} MB, {done.seconds:.1f} s"
        echo(f"{done.out}: {done.images:,} images as {done.format}, {size}{lost}")
    if done.records_lost:
        context.exit(_DAMAGE_FOUND)
