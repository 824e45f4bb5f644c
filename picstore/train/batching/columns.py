"""Values of columns for the records of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.storage.edits.columns import Values
from picstore.train.order.requests import TrainingSource


def look_up_columns(sources: Sequence[TrainingSource], source: I64, ids: I64) -> dict[str, Values]:
    """Look up column values for records of sources, by name: numbers (n, …), or a list of n texts.

    A record without a value, as in a data set without the column, has None, NaN or −1, like ``Column.take``.
    UsageError if the sources of a mux have values of several kinds or shapes.
    """
    columns: dict[str, Values] = {}
    for name in sources[0].plan.columns:
        if len(sources) == 1:
            columns[name] = sources[0].dataset.column(name).take(ids)
            continue
        held = [each.dataset.column(name) if name in each.dataset.columns else None for each in sources]
        present = [column for column in held if column is not None]
        # NaN marks a missing value if one of the columns holds floats.
        like = next((column for column in present if column.values.dtype.kind == "f"), present[0])
        slots = [np.flatnonzero(source == number) for number in range(len(sources))]
        pieces = [
            like.missing_values(len(here)) if column is None else column.take(ids[here])
            for column, here in zip(held, slots, strict=True)
        ]
        columns[name] = _join(name, pieces, np.argsort(np.concatenate(slots)))
    return columns


def _join(name: str, pieces: list[Any], order: I64) -> Values:
    if all(isinstance(piece, list) for piece in pieces):
        texts = [text for piece in pieces for text in piece]
        return [texts[k] for k in order]
    if len({piece.shape[1:] if isinstance(piece, np.ndarray) else None for piece in pieces}) > 1:
        raise UsageError(f"column {name!r} has values of other kinds or shapes in other data sets; rename one column")
    joined: Values = np.concatenate(pieces)[order]
    return joined
