"""``picstore merge``."""

from __future__ import annotations

from typing import Any

import click

from picstore.cli import options
from picstore.cli.conversion_summary import report_outcome
from picstore.storage.location.resolve import Location, locate


@click.command("merge")
@click.argument("destination", metavar="DST", type=locate)
@click.argument("sources", metavar="[SHARD]...", type=locate, nargs=-1)
@options.max_errors
@options.workers
@options.engine
@options.quiet
@options.as_json
def command(destination: Location, sources: tuple[Location, ...], as_json: bool, **given: Any) -> None:
    """Join the shards that `picstore convert --shard` made to one data set DST, with the bytes of a single run.

    Each SHARD is the DST of such a run; shards that were converted into DST itself are not named. Files are linked,
    or copied between file systems, and stay. While shards are missing the command fails, and it may be repeated.
    """
    from picstore.verbs.merge import merge

    report_outcome("merge", lambda bar: merge(destination, sources, progress=bar, **given), as_json=as_json)
