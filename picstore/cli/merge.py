"""``picstore merge``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from picstore.cli import options
from picstore.cli.outcome import report

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Location


@click.command("merge")
@click.argument("destination", metavar="DST", type=options.place)
@click.argument("parts", metavar="[PART]...", type=options.place, nargs=-1)
@options.max_errors
@options.as_json
def command(
    destination: Location, parts: tuple[Location, ...], max_errors: Callable[[int], float], as_json: bool
) -> None:
    """Make one data set, DST, of the shards that `picstore convert --shard` made: the bytes of a single run.

    Shards that were converted into DST itself need no PART; those of other places are linked, or copied where that
    cannot be, and stay. May be repeated at any time; it fails as long as shards are missing.
    """
    from picstore.prepare.convert.merge_shards import merge

    started = time.monotonic()
    converted = merge(destination, parts)
    report(converted, destination, time.monotonic() - started, as_json=as_json, max_errors=max_errors)
