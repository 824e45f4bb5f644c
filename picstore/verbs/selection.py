"""The records that a verb takes: all that meet a condition, or one part of a split of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Where


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
