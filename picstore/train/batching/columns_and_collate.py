"""Values that complete a batch: the records' columns, and the values that a user's collate function returns.

Both are added by the process or the threads that make the batch.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from picstore.arrays import I64, Array
from picstore.errors import PicstoreError, UsageError, counted
from picstore.storage.edits.columns import Values
from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import Collate, OutputSpec
from picstore.train.order.requests import TrainingSource

_REMEDY = "define collate in a module of its own, or give isolate=False"


def look_up_columns(sources: Sequence[TrainingSource], source: I64, ids: I64) -> dict[str, Values]:
    """Return, by column name, the values for n records: an array (n, …), or a list of n strings.

    A missing value, also that of a dataset without the column, is None, NaN or −1, as in ``Column.take``.

    Raises:
        UsageError: the sources of a mux (mixture of datasets) have values of different kinds or shapes.
    """
    columns: dict[str, Values] = {}
    for name in sources[0].plan.columns:
        if len(sources) == 1:
            columns[name] = sources[0].dataset.column(name).take(ids)
            continue
        held = [each.dataset.column(name) if name in each.dataset.columns else None for each in sources]
        present = [column for column in held if column is not None]
        # If any of the columns holds floats, NaN marks missing values.
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
        raise UsageError(f"column {name!r} has values of other kinds or shapes in other datasets; rename one column")
    return np.concatenate(pieces)[order]


def check_collate(collate: Any, *, isolate: bool) -> None:
    """Raise UsageError if ``collate`` is not a function or, with ``isolate``, if another process cannot import it."""
    if collate is None:
        return
    if not callable(collate):
        raise UsageError(f"collate is {collate!r}; give a function of a batch")
    if not isolate:
        return
    try:
        pickled = pickle.dumps(collate)
    except Exception as error:  # Pickle and __reduce__ may raise any error.
        raise UsageError(f"the loader's process cannot have collate: {error}; {_REMEDY}") from error
    if b"__main__" in pickled:
        raise UsageError(f"the loader's process does not import your main module, which defines {collate!r}; {_REMEDY}")


def run_collate(collate: Collate, batch: HostBatch, output: OutputSpec) -> dict[str, Any]:
    """Call a user's collate function with a finished batch; return the function's result.

    The function gets ``Batch.asdict()`` with NumPy arrays: ``images``, ``labels``, ``ids`` and, if there are any,
    ``targets`` and ``columns``. Images of bfloat16 are given as their bits, uint16. There are no images if a GPU will
    decode them. With ``aug_repeats``, the first dimension of images and targets is the repetition.

    Raises:
        PicstoreError: the function raised an error; the message has its traceback.
        UsageError: the function did not return a mapping of names to N items each.
    """
    given: dict[str, Any] = {"labels": batch.labels, "ids": batch.ids}
    if batch.encoded is None:
        given["images"] = _by_group(map_images(_numeric(output), batch.images), output)
    if batch.targets is not None:
        given["targets"] = _by_group(batch.targets, output)
    if batch.columns:
        given["columns"] = dict(batch.columns)
    try:
        values = collate(given)
    except Exception as error:  # Pass only the error's text to the parent, because the error may not pickle.
        raise PicstoreError(f"collate raised {type(error).__name__}: {error}\n\n{traceback.format_exc()}") from error
    if not isinstance(values, Mapping):
        raise UsageError(f"collate returned {type(values).__name__}; return a dict of arrays and lists by name")
    count = len(batch.ids)
    for name, items in values.items():
        if not isinstance(items, list) and not getattr(items, "shape", ()):
            raise UsageError(f"collate returned {name!r} of type {type(items).__name__}; return an array or a list")
        if len(items) != count:
            returned = f"collate returned {name!r} of {counted(len(items), 'item')}"
            raise UsageError(f"{returned}; return {count}, one for each record")
    return dict(values)


def _by_group(groups: Any, output: OutputSpec) -> Any:
    """Return a dict of the groups' values by name; for a single group without name, its list of views or only view."""
    first = output.groups[0]
    if first.name:
        return {spec.name: values for spec, values in zip(output.groups, groups, strict=True)}
    return groups[0][0] if first.count == 1 else groups[0]


def _numeric(output: OutputSpec) -> Callable[[Array], Array]:
    return lambda image: image.view(np.float16) if output.dtype == "float16" else image
