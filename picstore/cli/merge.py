"""``picstore merge``."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from picstore.cli import options
from picstore.cli.outcome import report_outcome
from picstore.storage.location.resolve import Location, locate


@click.command("merge")
@click.argument("destination", metavar="DST", type=locate)
@click.argument("sources", metavar="[SHARD]...", type=locate, nargs=-1)
@options.max_errors
@options.quiet
@options.as_json
def command(
    destination: Location, sources: tuple[Location, ...], max_errors: Callable[[int], float], as_json: bool
) -> None:
    """Join the shards that `picstore convert --shard` made to one data set DST, with the bytes of a single run.

    Each SHARD is the DST of such a run; shards that were converted into DST itself are not named. Files are linked,
    or copied between file systems, and stay. While shards are missing the command fails, and it may be repeated.
    """
    from picstore.cli.progress import show_progress
    from picstore.prepare.convert.merge_shards import merge

    started = time.monotonic()
    with show_progress("merge") as bar:
        bar.begin_stage("files")
        result = merge(destination, sources)
    report_outcome(result, destination, time.monotonic() - started, as_json=as_json, max_errors=max_errors)
