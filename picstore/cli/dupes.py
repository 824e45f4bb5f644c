"""``picstore dupes``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.prepare.upkeep.dupes import Group

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
@click.option("--ids", "file", metavar="FILE", type=options.PATH, help="Write the ids of all duplicates to FILE.")
@click.option("--save", is_flag=True, help="Keep the hashes in DATASET, as its column 'phash', for the next time.")
@options.root
@click.option("--other-root", metavar="DIR", type=locate, help="The same as --root, of OTHER.")
@options.workers
@options.quiet
@options.as_json
def command(
    dataset: Location,
    other: Location | None,
    distance: int,
    file: Path | None,
    save: bool,
    workers: int | None,
    as_json: bool,
    **roots: Location | None,
) -> None:
    """List groups of near-duplicates in DATASET, or the images of DATASET that are in OTHER too.

    Images are compared by perceptual hashes (pHash) of their JPEGs, which are read but not decoded. Copies of other
    quality or size, or in grey, are found; mirrored, rotated or strongly cropped ones are not.

    `picstore delete DATASET --ids FILE` deletes the duplicates that `--ids FILE` lists: all images of a group but the
    first, or all that are in OTHER.
    """
    from picstore.cli.progress import show_progress
    from picstore.prepare.engine.processes import default_workers
    from picstore.prepare.upkeep.dupes import find_duplicates, hash_images, save_hashes
    from picstore.storage.dataset import Dataset

    started = time.monotonic()
    opened = Dataset(dataset, root=roots["root"])
    against = None if other is None else Dataset(other, root=roots["other_root"])
    with show_progress("dupes") as bar:
        hashed = hash_images(opened, workers=workers or default_workers(), progress=bar)
        others = None
        if against is not None:
            others = hash_images(against, workers=workers or default_workers(), progress=bar)
        bar.begin_stage("comparing")
        groups = find_duplicates(hashed, others, distance=distance)
        if save:
            save_hashes(opened, hashed)
    duplicates = [id_ for group in groups for id_, _ in group.duplicates]
    if file is not None:
        file.write_text("".join(f"{id_}\n" for id_ in sorted(duplicates)))
    left_out = len(opened) - len(hashed.ids)
    if as_json:
        facts = {"dataset": str(dataset), "other": None if other is None else str(other), "distance": distance}
        counts = {"images": len(hashed.ids), "duplicates": len(duplicates), "unreadable": left_out}
        echo_json({**facts, **counts, "groups": _as_json(groups), "seconds": round(time.monotonic() - started, 3)})
        return
    echo(*_lines(groups))
    unread = f", {left_out:,} unreadable images left out" if left_out else ""
    found = f"{len(duplicates):,} duplicates" + ("" if other is None else f" of images in {other}")
    echo(f"{dataset}: {len(hashed.ids):,} images, {found} in {len(groups):,} groups{unread}")
    if duplicates:
        echo(f"to delete them: {'' if file else '--ids FILE, then '}picstore delete {dataset} --ids {file or 'FILE'}")


def _as_json(groups: list[Group]) -> list[dict[str, Any]]:
    return [
        {"id": group.id, "duplicates": [{"id": id_, "distance": apart} for id_, apart in group.duplicates]}
        for group in groups
    ]


def _lines(groups: list[Group]) -> list[str]:
    """Format the largest groups, ``id: duplicate (distance), …``."""
    largest = sorted(groups, key=lambda group: -len(group.duplicates))
    lines = []
    for group in largest[:_SHOWN]:
        shown = ", ".join(f"{id_} ({apart})" for id_, apart in group.duplicates[:_SHOWN])
        more = len(group.duplicates) - _SHOWN
        lines.append(f"{group.id}: {shown}" + (f" and {more:,} more" if more > 0 else ""))
    if len(groups) > _SHOWN:
        lines.append(f"… and {len(groups) - _SHOWN:,} groups more; --json lists all")
    return lines
