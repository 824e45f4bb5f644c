"""``picstore export``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from picstore.cli import options

_DAMAGE_FOUND = 3


@click.command("export")
@click.argument("dataset", metavar="DATASET", type=options.PATH)
@click.argument("out", metavar="OUT", type=options.PATH)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["folder", "webdataset", "mds"]),
    required=True,
    help="folder: a sub-folder a class and a table records.jsonl; webdataset: tars; mds: MosaicML's shards.",
)
@click.option("--shard-size", type=options.size, default="256MiB", show_default=True, help="Of a tar or shard, about.")
@options.as_json
@click.pass_context
def command(context: click.Context, dataset: Path, out: Path, format_: str, shard_size: int, as_json: bool) -> None:
    """Write the JPEGs of DATASET, as they are, with labels, extras and attachments, to the new folder OUT.

    Exit code 3 if records were damaged and had to be left out.
    """
    from picstore.cli.progress import Bar
    from picstore.prepare.exports.export import export

    started = time.monotonic()
    with Bar("export") as bar:
        done = export(dataset, out, format=format_, shard_size=shard_size, progress=bar)
    seconds = time.monotonic() - started
    for remark in done.remarks:
        click.echo(remark, err=True)
    if as_json:
        result = {"out": str(out), "format": format_, "images": done.images, "bytes": done.bytes}
        click.echo(json.dumps({**result, "records_lost": done.lost, "seconds": round(seconds, 3)}))
    else:
        lost = f", {done.lost:,} damaged records left out" if done.lost else ""
        click.echo(f"{out}: {done.images:,} images as {format_}, {done.bytes / 1e6:,.1f} MB, {seconds:.1f} s{lost}")
    if done.lost:
        context.exit(_DAMAGE_FOUND)
