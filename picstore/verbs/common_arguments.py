"""Arguments that several verbs share, made into values: an engine, and the records to take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.prepare.engine.worker_processes import Engine, LocalEngine
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Where

ENGINES = ("local", "ray")


def open_engine(engine: str, workers: int | None) -> AbstractContextManager[Engine]:
    """Make an engine of this machine's processes (``local``), or of the Ray cluster of RAY_ADDRESS (``ray``).

    Args:
        workers: processes or tasks at a time; None for the number of cores.

    Raises:
        UsageError: there is no such engine, or ``workers`` is no positive number.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown; known are {', '.join(ENGINES)}")
    if engine == "ray":
        from picstore.prepare.engine.ray import connect

        return connect(workers if workers is None else count_workers(workers))
    return nullcontext(LocalEngine(count_workers(workers)))


def count_workers(workers: int | None) -> int:
    """Return a number of workers, by default the number of cores; UsageError unless it is positive."""
    if workers is None:
        return count_cores()
    if workers < 1:
        raise UsageError(f"workers={workers}; give at least 1, or None for the number of cores")
    return workers


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
    """Open a data set, or several as one, and select records.

    Args:
        source: paths, URLs or open data sets.
        where: condition in SQL.
        split: fractions.
        part: of the split, 1 for the first.
        root: of an index, the folder of its images.

    Raises:
        UsageError: one of ``split`` and ``part`` is missing, or there is no such part.
    """
    several = isinstance(source, (list, tuple))  # a data set is a sequence too
    sources = cast("Sequence[Where | Dataset]", source if several else [source])
    if not sources:
        raise UsageError(f"{sources!r} names no data set; give at least one")
    dataset, *others = (each if isinstance(each, Dataset) else Dataset(each, root=root) for each in sources)
    if others:
        dataset = dataset.concat(*others)
    if where is not None:
        dataset = dataset.where(where)
    if (split is None) != (part is None):
        raise UsageError("split and part belong together: --split 0.9 --part 1, in Python split=0.9, part=1")
    if split is None or part is None:
        return dataset
    fractions = [split] if isinstance(split, (int, float)) else split
    parts = dataset.split(*fractions, seed=split_seed, by=split_by)
    if not 1 <= part <= len(parts):
        raise UsageError(f"part {part} of a split into {len(parts)} parts; give 1 to {len(parts)}")
    return parts[part - 1]
