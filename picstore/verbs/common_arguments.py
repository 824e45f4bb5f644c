"""Conversion of arguments that several verbs share: engine, selection of records, and settings of JPEGs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from picstore.errors import UsageError, counted

if TYPE_CHECKING:
    from picstore.prepare.convert.row_division import Shard
    from picstore.prepare.engine.worker_processes import Engine
    from picstore.prepare.image.encode_settings import EncodeSettings
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where

EngineName: TypeAlias = Literal["local", "ray"]
MAX_SEED = (1 << 64) - 1


def open_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """Return an engine of processes on this machine (``local``), or of tasks on RAY_ADDRESS's cluster (``ray``).

    Args:
        workers: number of processes, or of tasks that run at the same time; None for the number of cores.

    Raises:
        UsageError: no engine has this name, or ``workers`` is not positive.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    if engine not in get_args(EngineName):
        raise UsageError(f"engine {engine!r} is unknown; known are {', '.join(get_args(EngineName))}")
    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers if workers is None else count_workers(workers))
    from picstore.prepare.engine.worker_processes import LocalEngine

    return nullcontext(LocalEngine(count_workers(workers)))


def count_workers(workers: int | None) -> int:
    """Return ``workers``, by default the number of cores; raise UsageError unless the number is positive."""
    from picstore.cores import count_cores

    require_range("workers", workers, 1)
    return count_cores() if workers is None else workers


def require_range(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise UsageError if ``value`` is not a number, or is below ``low`` or above ``high``; None is allowed."""
    if value is None:
        return
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not low <= value <= (value if high is None else high):
        possible = f"at least {low}" if high is None else f"{low} to {high}"
        raise UsageError(f"{name}={value!r}; give {possible}")


def given_arguments(arguments: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the items of ``arguments`` whose names are in ``names`` and whose values are not None."""
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def encode_settings(arguments: Mapping[str, Any], stored: Mapping[str, Any] | None = None) -> EncodeSettings:
    """Return a verb's encode settings: its arguments that are not None, else ``stored`` settings, else defaults.

    Raises:
        UsageError: a setting is out of range.
    """
    from picstore.prepare.image.encode_settings import EncodeSettings, parse_color

    given = given_arguments(arguments, EncodeSettings.__slots__)
    if "background" in given:
        given["background"] = parse_color(given["background"])
    return EncodeSettings.from_json({**(stored or {}), **given})


def start_fork_server(settings: EncodeSettings) -> None:
    """Start the server process, which loads the kernels that encode settings need, and then forks worker processes."""
    from picstore.prepare.convert.kernel_warmup import start_fork_server

    start_fork_server(settings, "picstore.verbs.warm:compile_on_first_use")


def require_apart_from_source(out: Where, source: Where) -> None:
    """Raise UsageError if a destination overlaps the source or, if that is an index, the folder of its images."""
    from picstore.storage.location.overlap_check import require_apart
    from picstore.storage.references import indexed_folder

    require_apart(out, (source, *indexed_folder(source)))


def refuse_destination(out: Where, *, resume: bool, shard: Shard | None = None) -> None:
    """Raise an error if a destination cannot take a new dataset; call this before kernels compile or inputs are listed.

    Errors are those of :func:`picstore.prepare.convert.resumable_job.begin_job`, which this function calls early.
    """
    from picstore.prepare.convert.resumable_job import begin_job
    from picstore.storage.location.resolve import MANIFEST, locate_writable

    root = locate_writable(out)
    if not (resume and (root / MANIFEST).is_file()):
        begin_job(root, {}, resume=resume, shard=shard)


def open_dataset(dataset: Where | Dataset, root: Where | None) -> Dataset:
    """Return a dataset that is already open, or open the dataset at a path or URL."""
    from picstore.storage.dataset import Dataset

    if not isinstance(dataset, Dataset):
        return Dataset(dataset, root=root)
    if root is not None:
        raise UsageError("an open dataset has a root of its own; give it to picstore.Dataset")
    return dataset


def open_other(other: Where | Dataset | None, root: Where | None) -> Dataset | None:
    """Return the second dataset of a verb, opened, or None; raise UsageError if it is None and a root is given."""
    if other is None and root is not None:
        raise UsageError("other_root is the root of a second dataset; give other too")
    return None if other is None else open_dataset(other, root)


def open_selection(
    source: Where | Dataset | Sequence[Where | Dataset],
    *,
    where: str | None,
    split: float | Sequence[float] | None,
    part: int | None,
    split_seed: int,
    split_by: str | None,
    root: Where | None = None,
) -> Dataset:
    """Open a dataset, or join several, and select the records that meet ``where`` and are in part ``part`` of a split.

    Args:
        source: a dataset or a sequence of datasets, each a path, a URL or an open dataset.
        where: condition on a record's columns, in SQL; None for all records.
        split: fractions of the records in the parts of a random split; None for no split.
        part: number of the part of ``split`` to select; 1 is the first.
        root: folder of the images, if a dataset is an index of images.

    Raises:
        UsageError: only one of ``split`` and ``part`` is given, or the split has no part of this number.
    """
    require_range("split_seed", split_seed, 0, MAX_SEED)
    # Test for list and tuple, not for Sequence, because an open dataset is a Sequence too.
    several = isinstance(source, (list, tuple))
    sources = cast("Sequence[Where | Dataset]", source if several else [source])
    if not sources:
        raise UsageError(f"{sources!r} names no dataset; give at least one")
    dataset, *others = (open_dataset(each, root) for each in sources)
    if others:
        dataset = dataset.concat(*others)
    if where is not None:
        dataset = dataset.where(where)
    if (split is None) != (part is None):
        raise UsageError("split and part belong together: --split 0.9 --part 1, in Python split=0.9, part=1")
    if split is None or part is None:
        if split_by is not None or split_seed:
            raise UsageError("split_by and split_seed belong to a split; give --split and --part too")
        return dataset
    fractions = [split] if isinstance(split, (int, float)) else split
    parts = dataset.split(*fractions, seed=split_seed, by=split_by)
    if not 1 <= part <= len(parts):
        raise UsageError(f"part {part} of a split into {counted(len(parts), 'part')}; give 1 to {len(parts)}")
    return parts[part - 1]
