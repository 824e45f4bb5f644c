"""``picstore delete``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from picstore.cli import options
from picstore.cli.terminal import echo, echo_json
from picstore.errors import Conflict, UsageError
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset

_MAX_CONFLICTS = 100
_MAX_FILE = 1 << 30  # bytes, a hundred million ids


@click.command("delete")
@click.argument("dataset", metavar="DATASET", type=locate)
@click.option(
    "--id",
    "ids",
    type=click.IntRange(0, (1 << 63) - 1),
    multiple=True,
    help="Id of an image to delete; may be repeated.",
)
@click.option("--ids", "file", metavar="FILE", type=options.PATH, help="File of ids to delete, one per line.")
@options.root
@options.as_json
def command(dataset: Location, ids: tuple[int, ...], file: Path | None, root: Location | None, as_json: bool) -> None:
    """Delete images from DATASET.

    A small file lists the deleted images, and readers skip them; no image is rewritten. `picstore shuffle` leaves them
    out of its copy. Readers that have the data set open keep the version that they opened.
    """
    chosen = {*ids, *(_read(file) if file is not None else ())}
    if not chosen:
        raise UsageError("nothing to delete; give --id N or --ids FILE")
    before, after = _delete(dataset, root, chosen)
    if as_json:
        result = {"dataset": str(dataset), "uuid": after.uuid, "images": len(after)}
        echo_json({**result, "deleted": len(before) - len(after)})
    else:
        echo(f"{dataset}: {len(before) - len(after):,} images deleted, {len(after):,} left")


def _delete(dataset: Location, root: Location | None, ids: set[int]) -> tuple[Dataset, Dataset]:
    """Delete records; returns the data set before and after. Others may edit it meanwhile, which changes no id."""
    from picstore.storage.dataset import Dataset

    for _ in range(_MAX_CONFLICTS):
        before = Dataset(dataset, root=root)
        with contextlib.suppress(Conflict):
            return before, before.without(ids).save()
    raise UsageError(f"{dataset} is edited all the time; nothing was deleted")


def _read(file: Path) -> list[int]:
    if (size := file.stat().st_size) > _MAX_FILE:
        raise UsageError(f"{file} has {size:,} bytes; at most {_MAX_FILE:,} are possible")
    ids = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        if not (line.strip().isascii() and line.strip().isdecimal() and len(line.strip()) < 19):
            raise UsageError(f"line {number} of {file} is {line[:40]!r}, not an id")
        ids.append(int(line))
    return ids
