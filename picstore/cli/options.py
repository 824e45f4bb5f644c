"""Option types, and options that several verbs share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from picstore.errors import UsageError
from picstore.prepare.image.settings import IMAGE_TIMEOUT
from picstore.storage.location.resolve import locate
from picstore.storage.sizes import parse_size

if TYPE_CHECKING:
    from picstore.prepare.engine.processes import Engine
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where

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
        "(CSV or JSONL), imagenet (a tar per synset), coco, webdataset, mds, litdata, ffcv, parquet, lmdb, hdf5, "
        "recordio, tfrecord, picpoc, index (of `picstore index`), or a source of another package.",
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


def failure_limit(text: str) -> Callable[[int], float]:
    """Parse a number of inputs, ``10``, or a fraction of them, ``1%``, to a function of the number of inputs."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    if match is None or (not match[2] and "." in match[1]):
        raise click.BadParameter(f"{text!r} is neither a number of inputs nor a percentage such as 1%")
    limit = float(match[1])
    return (lambda inputs: inputs * limit / 100) if match[2] else (lambda _: limit)


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


# Arguments of ``open_source`` that the options of :func:`source` give.
SOURCE = ("kind", "root", "synsets", "annotations", "image_field", "label_field", "classes")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The records that ``--where`` and ``--split`` name: of those with the condition, one part of the split."""

    where: str | None
    split: tuple[float, ...] | None
    part: int | None
    split_seed: int
    split_by: str | None

    def open(self, path: Where, *others: Where, root: Where | None = None) -> Dataset:
        """Open a data set, or several as one, and select the records; ``root`` is that of an index."""
        from picstore.storage.dataset import Dataset

        dataset = Dataset(path, root=root)
        if others:
            dataset = dataset.concat(*map(Dataset, others))
        if self.where is not None:
            dataset = dataset.where(self.where)
        if (self.split is None) != (self.part is None):
            raise UsageError("--split and --part belong together: --split 0.9 --part 1")
        if self.split is None or self.part is None:
            return dataset
        parts = dataset.split(*self.split, seed=self.split_seed, by=self.split_by)
        if self.part > len(parts):
            raise UsageError(f"--part {self.part} of a split into {len(parts)} parts")
        return parts[self.part - 1]


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


def selection(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--where``, ``--split`` and their like, as an argument ``selection``."""

    @functools.wraps(command)
    def with_selection(*args: Any, **given: Any) -> None:
        mine = {name: given.pop(name) for name in Selection.__slots__}
        command(*args, selection=Selection(**mine), **given)

    decorated: Callable[..., None] = with_selection
    for option in reversed(_SELECTION):
        decorated = option(decorated)
    return decorated


def make_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """Make the engine of ``--engine`` and ``--workers``."""
    from picstore.prepare.engine.processes import LocalEngine, default_workers

    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers)
    return nullcontext(LocalEngine(workers or default_workers()))
