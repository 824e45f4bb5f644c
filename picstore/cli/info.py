"""``picstore info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.conversion_summary import format_outcome
from picstore.cli.terminal import echo, echo_json
from picstore.display.histograms import histogram_lines, sample_note
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.results import InfoResult

_WORTH_COPYING = 0.8  # of the bytes that are read


@click.command("info")
@click.argument("dataset", metavar="DATASET", type=locate)
@options.selection
@options.root
@options.quiet
@options.as_json
def command(dataset: Location, as_json: bool, **given: Any) -> None:
    """Print what DATASET holds, how it was made, and how well it is shuffled.

    Counts by class cover all images. Where there are more than 1,000 containers, other figures cover 1,000 and say so.
    """
    from picstore.cli.progress import show_progress
    from picstore.verbs.info import info

    with show_progress("info") as bar:
        done = info(dataset, progress=bar, **given)
    if as_json:
        echo_json(done.to_json())
    else:
        echo(*_lines(dataset, done))
        echo(*histogram_lines(done.histograms, containers=done.containers))


def _lines(dataset: Location, facts: InfoResult) -> list[str]:
    lines = [
        f"{dataset}: picstore data set, uuid {facts.uuid}",
        f"  format      {facts.format_version}, which picstore {facts.read_by} and later read",
        f"  images      {facts.images:,}, {facts.bytes / 1e6:,.1f} MB",
        f"  classes     {len(facts.classes):,}" + _few(facts.classes),
        f"  layout      {facts.streams} streams, {facts.files:,} files, {facts.containers:,} containers",
    ]
    if facts.deleted:
        lines.append(f"  deleted     {facts.deleted:,} more images; shuffle leaves them out for good")
    if (left := facts.stored_images - facts.deleted) > facts.images:
        lines.append(f"  selection   {facts.images:,} of {left:,} images")
    if facts.copy_bytes < _WORTH_COPYING * facts.read_bytes:
        read, copied = facts.read_bytes / 1e6, facts.copy_bytes / 1e6
        lines.append(
            f"  reading     an epoch reads {read:,.1f} MB; of a copy by picstore shuffle about {copied:,.1f} MB"
        )
    if facts.columns:
        lines.append("  columns     " + ", ".join(facts.columns))
    if encode := facts.encode:
        size = encode["resize"] or "as the source"
        lines.append(f"  encoding    quality {encode['quality']}, {encode['subsampling']}, size {size}")
    if references := facts.references:
        lines.append(f"  images in   {references['root']}, {references['foreign']:,} of them no upright JPEGs")
    source = facts.provenance
    lines.append(f"  made        by picstore {source.get('picstore')} from {source.get('source')}")
    if outcome := facts.outcome:
        lines.append(f"  converted   {format_outcome(outcome)}")
    event = facts.shuffle
    lines.append("  shuffled    " + (f"{event['method']}, seed {event['seed']}" if event else "no"))
    if order := facts.order:
        lines.append(
            f"  order       correlation with the input {order['correlation']:+.3f}; neighbors of one class "
            f"{order['same_class_neighbours']:.1%}, {order['expected_same_class_neighbours']:.1%} in a random order"
            f"{sample_note(facts.sampled_containers, facts.containers)}"
        )
    return lines


def _few(names: list[str], count: int = 4) -> str:
    if not names:
        return ""
    return ": " + ", ".join(names[:count]) + (", …" if len(names) > count else "")
