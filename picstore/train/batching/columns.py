"""What columns say of the records of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.storage.edits.columns import Column, Values
from picstore.train.order.requests import Source


def take_columns(sources: Sequence[Source], source: I64, ids: I64) -> dict[str, Values]:
    """The values of the columns that are wanted, by name: numbers (n, …), or a list of n texts.

    What has no value, such as a record of a data set without the column, has None, NaN or -1 as of ``Column.take``.

    Args:
        source: int64 (n,), number of the data set of each slot.
        ids: int64 (n,), of the records.

    Raises:
        UsageError: the sources of a mux have values of several kinds or shapes.
    """
    columns: dict[str, Values] = {}
    for name in sources[0].recipe.columns:
        if len(sources) == 1:
            columns[name] = sources[0].dataset.column(name).take(ids)
            continue
        held = [each.dataset.column(name) if name in each.dataset.columns else None for each in sources]
        like = _likely([column for column in held if column is not None])
        slots = [np.flatnonzero(source == number) for number in range(len(sources))]
        parts = [
            like.nothing(len(here)) if column is None else column.take(ids[here])
            for column, here in zip(held, slots, strict=True)
        ]
        columns[name] = _join(name, parts, np.argsort(np.concatenate(slots)))
    return columns


def _likely(columns: Sequence[Column]) -> Column:
    """The column whose way to say nothing the others can share: of integers and floats, one of floats."""
    return next((column for column in columns if column.values.dtype.kind == "f"), columns[0])


def _join(name: str, parts: list[Any], order: I64) -> Values:
    if all(isinstance(part, list) for part in parts):
        texts = [text for part in parts for text in part]
        return [texts[k] for k in order]
    if len({part.shape[1:] if isinstance(part, np.ndarray) else None for part in parts}) > 1:
        raise UsageError(f"the column {name!r} has values of another kind or shape in each data set")
    joined: Values = np.concatenate(parts)[order]
    return joined
