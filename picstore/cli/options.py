"""Option types, and options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from picstore.errors import UsageError
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, parse_color
from picstore.storage.location.resolve import locate
from picstore.storage.sizes import parse_size

PATH = click.Path(path_type=Path)
C = TypeVar("C", bound=Callable[..., Any])


_SOURCE_OPTIONS = (
    click.option(
        "--source",
        "kind",
        metavar="KIND",
        default="auto",
        show_default=True,
        help="Format of SRC: auto (look at SRC), folder (a sub-folder per class), list (lines `path label`), table "
        "(CSV or JSONL), imagenet (a tar per synset), coco, voc, yolo, webdataset, mds, litdata, ffcv, parquet, lmdb, "
        "hdf5, recordio, tfrecord, picpoc, index (of `picstore index`), or a source of another package.",
    ),
    click.option(
        "--root",
        metavar="DIR",
        type=locate,
        help="Directory that the paths in a list or table are relative to, and lie below; of an index, the directory "
        "of its images.  [default: directory of SRC; as the index says, if you made it]",
    ),
    click.option(
        "--synsets",
        metavar="FILE",
        type=locate,
        help="File of synset names in the order of labels, for imagenet.  [default: sorted names]",
    ),
    click.option("--annotations", metavar="FILE", type=locate, help="COCO file of objects or keypoints, for coco."),
    click.option(
        "--image-field", metavar="NAME", help="Column or field that holds the image.  [default: found by usual names]"
    ),
    click.option(
        "--label-field", metavar="NAME", help="Column or field that holds the label.  [default: found by usual names]"
    ),
    click.option(
        "--split",
        metavar="NAME",
        help="Split to read where SRC holds several, such as train, val or test; or all, for all shards together.",
    ),
    click.option(
        "--targets",
        metavar="FORMS",
        help="Form of fields that describe objects, by commas: boxes:xyxy, boxes:xywh or boxes:cxcywh, polygons, "
        "keypoints; for coordinates from 0 to 1 boxes:xyxy-normalized, polygons:normalized, …  "
        "[default: they are metadata, but for coco]",
    ),
    click.option(
        "--hidden",
        is_flag=True,
        help="Take files and folders whose names begin with a dot, which are counted otherwise.",
    ),
    click.option(
        "--classes",
        metavar="FILE",
        type=locate,
        help="File of class names, one per line, in the order of labels.  [default: names found in SRC]",
    ),
)


def size(text: str) -> int:
    """Parse a size in bytes: ``8MiB``, ``512KiB``, ``1GiB`` or a plain number."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def color(text: str) -> tuple[int, int, int]:
    """Parse ``ffffff`` to red, green and blue."""
    try:
        return parse_color(text)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def failure_limit(text: str) -> str:
    """Check a number of inputs, ``10``, or a fraction of them, ``1%``."""
    if re.fullmatch(r"\d+|\d+(\.\d+)?%", text.strip()) is None:
        raise click.BadParameter(f"{text!r} is neither a number of inputs nor a percentage such as 1%")
    return text


max_errors = click.option(
    "--max-errors",
    metavar="N|P%",
    type=failure_limit,
    default="1%",
    show_default=True,
    help="Number or percentage of inputs that may fail; with more, the exit code is 3.",
)
workers = click.option("--workers", type=click.IntRange(min=1), help="Number of processes.  [default: number of cores]")
max_pixels = click.option(
    "--max-pixels",
    type=click.IntRange(1),
    default=1 << 28,
    show_default=True,
    help="Maximum number of pixels of an image; larger images fail.",
)
image_timeout = click.option(
    "--image-timeout",
    type=click.FloatRange(0, 86_400),
    default=int(IMAGE_TIMEOUT),
    show_default=True,
    metavar="SECONDS",
    help="Maximum time to decode and encode an image, which fails if it takes longer; 0 for no limit.",
)
file_size = click.option(
    "--file-size", type=size, default="256MiB", show_default=True, help="Target size of each file."
)
container_size = click.option(
    "--container-size",
    type=size,
    default="8MiB",
    show_default=True,
    help="Target size of a container, the unit of reading and checking.",
)
root = click.option(
    "--root",
    metavar="DIR",
    type=locate,
    help="Directory or URL of the images of an index, which you trust.  [default: as the index says, if you made it]",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
_QUIET = "picstore.quiet"  # in the context of the verb


def _keep_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


quiet = click.option(
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_keep_quiet,
    help="Show no progress: no bar on a terminal, and elsewhere no line a minute.",
)


def is_quiet() -> bool:
    """Whether the verb that runs was given ``--quiet``."""
    return bool(click.get_current_context().meta.get(_QUIET))


seed = click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Random seed.")
engine = click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Run on this machine (local), or on the Ray cluster of RAY_ADDRESS (ray, needs picstore[ray]).",
)


def source(command: C) -> C:
    """Add the options that say how to read SRC."""
    for option in reversed(_SOURCE_OPTIONS):
        command = option(command)
    return command


def fractions(text: str) -> tuple[float, ...]:
    """Parse fractions of a split: ``0.9`` or ``0.8,0.1``."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0.8,0.1") from error


_SELECTION = (
    click.option(
        "--where",
        metavar="SQL",
        help="Take the images for which a condition holds, such as 'label = 3 AND width > 512' (needs picstore[sql]).",
    ),
    click.option("--split", metavar="F[,F…]", type=fractions, help="Split at random, such as 0.9 or 0.8,0.1."),
    click.option("--part", type=click.IntRange(min=1), help="The part of --split to take; 1 is the first."),
    click.option(
        "--split-seed",
        type=click.IntRange(0, (1 << 64) - 1),
        default=0,
        show_default=True,
        help="Random seed of --split.",
    ),
    click.option("--split-by", metavar="COLUMN", help="Split each value of a column, such as label, by itself."),
)


def selection(command: C) -> C:
    """Add ``--where``, ``--split`` and their like."""
    for option in reversed(_SELECTION):
        command = option(command)
    return command
