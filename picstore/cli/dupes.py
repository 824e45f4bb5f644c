"""``picstore dupes``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from picstore.results import DupesResult, DuplicateGroup

_SHOWN = 20  # groups, of which each line shows as many duplicates


@click.command("dupes")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.argument("other", metavar="[OTHER]", type=locate, required=False)
@click.option(
    "--distance",
    type=click.IntRange(0, 11),
    default=6,
    show_default=True,
    help="Bits of 64 in which the hashes of near-duplicates may differ.",
)
@click.option("--ids", metavar="FILE", type=options.PATH, help="Write the ids of all duplicates to FILE.")
@click.option("--save", is_flag=True, help="Keep the hashes in DATASET, as its column 'phash', for the next time.")
@options.root
@click.option("--other-root", metavar="DIR", type=locate, help="The same as --root, of OTHER.")
@options.workers
@options.engine
@options.quiet
@options.as_json
def command(dataset: Location, other: Location | None, as_json: bool, **given: Any) -> None:
    """List groups of near-duplicates in DATASET, or the images of DATASET that are in OTHER too.

    Images are compared by perceptual hashes (pHash) of their JPEGs, which are read but not decoded. Copies of other
    quality or size, or in grey, are found; mirrored, rotated or strongly cropped ones are not.

    `picstore delete DATASET --ids FILE` deletes the duplicates that `--ids FILE` lists: all images of a group but the
    first, or all that are in OTHER.
    """
    from picstore.cli.progress import show_progress
    from picstore.verbs.dupes import dupes

    with show_progress("dupes") as bar:
        result = dupes(dataset, other, progress=bar, **given)
    if as_json:
        echo_json(result.to_json())
    else:
        echo(*_lines(result.groups), *_summary(result, given["ids"]))


def _summary(result: DupesResult, file: Path | None) -> list[str]:
    unread = f", {result.unreadable:,} unreadable images left out" if result.unreadable else ""
    found = f"{result.duplicates:,} duplicates" + ("" if result.other is None else f" of images in {result.other}")
    lines = [f"{result.dataset}: {result.images:,} images, {found} in {len(result.groups):,} groups{unread}"]
    if result.duplicates:
        first = "" if file else "--ids FILE, then "
        lines.append(f"to delete them: {first}picstore delete {result.dataset} --ids {file or 'FILE'}")
    return lines


def _lines(groups: Sequence[DuplicateGroup]) -> list[str]:
    """Format the largest groups, ``id: duplicate (distance), …``."""
    largest = sorted(groups, key=lambda group: -len(group.duplicates))
    lines = []
    for group in largest[:_SHOWN]:
        shown = ", ".join(f"{each.id} ({each.distance})" for each in group.duplicates[:_SHOWN])
        more = len(group.duplicates) - _SHOWN
        lines.append(f"{group.id}: {shown}" + (f" and {more:,} more" if more > 0 else ""))
    if len(groups) > _SHOWN:
        lines.append(f"… and {len(groups) - _SHOWN:,} groups more; --json lists all")
    return lines
