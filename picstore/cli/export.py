"""``picstore export``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location

_DAMAGE_FOUND = 3


@click.command("export")
@click.argument("dataset", metavar="DATASET", type=options.PATH)
@click.argument("out", metavar="OUT", type=options.PATH)
@click.option(
    "--format",
    "format_",
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
@options.quiet
@options.as_json
@click.pass_context
def command(
    context: click.Context,
    dataset: Path,
    out: Path,
    format_: str,
    shard_size: int,
    selection: options.Selection,
    root: Location | None,
    as_json: bool,
) -> None:
    """Export the JPEGs of DATASET unchanged, with labels, extras and attachments, to a new folder OUT.

    Damaged records are left out; the exit code is then 3.
    """
    from picstore.cli.progress import show_progress
    from picstore.prepare.exports.export import export

    started = time.monotonic()
    with show_progress("export") as bar:
        done = export(selection.open(dataset, root=root), out, format=format_, shard_size=shard_size, progress=bar)
    seconds = time.monotonic() - started
    for remark in done.remarks:
        echo(remark, err=True)
    if as_json:
        result = {"out": str(out), "format": format_, "images": done.images, "bytes": done.bytes}
        echo_json({**result, "records_lost": done.lost, "seconds": round(seconds, 3)})
    else:
        lost = f", {done.lost:,} damaged records left out" if done.lost else ""
        echo(f"{out}: {done.images:,} images as {format_}, {done.bytes / 1e6:,.1f} MB, {seconds:.1f} s{lost}")
    if done.lost:
        context.exit(_DAMAGE_FOUND)
