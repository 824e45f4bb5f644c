"""A user's function that adds values to batches where they are made, in the loader's process or its threads."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from picstore.arrays import Array
from picstore.errors import PicstoreError, UsageError
from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import Collate, OutputSpec

_REMEDY = "define collate in a module of its own, or give isolate=False"


def check_collate(collate: Any, *, isolate: bool) -> None:
    """Raise UsageError for what is no function, or with ``isolate`` none that another process finds by its name."""
    if collate is None:
        return
    if not callable(collate):
        raise UsageError(f"collate is {collate!r}; give a function of a batch")
    if not isolate:
        return
    try:
        pickled = pickle.dumps(collate)
    except Exception as error:  # pickle raises any, and so may __reduce__
        raise UsageError(f"the loader's process cannot have collate: {error}; {_REMEDY}") from error
    if b"__main__" in pickled:
        raise UsageError(f"the loader's process does not import your main module, which defines {collate!r}; {_REMEDY}")


def run_collate(collate: Collate, batch: HostBatch, output: OutputSpec) -> dict[str, Any]:
    """Call a user's function with a finished batch; returns its values.

    It gets a dict of ``images``, ``labels``, ``ids`` and, as far as there are some, ``targets`` and ``columns``, in the
    form that ``Batch.asdict()`` has, but of NumPy arrays. Images of bfloat16 are their bits, uint16. Images that a
    GPU will decode are missing. With ``aug_repeats`` images and targets have a dimension of repetitions first.

    Raises:
        PicstoreError: the function raised; the message has its traceback.
        UsageError: it returned something else than values of N items.
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
    except Exception as error:  # of any kind: it crosses a process as text
        raise PicstoreError(f"collate raised {type(error).__name__}: {error}\n\n{traceback.format_exc()}") from error
    if not isinstance(values, Mapping):
        raise UsageError(f"collate returned {type(values).__name__}; return a dict of arrays and lists by name")
    count = len(batch.ids)
    for name, items in values.items():
        if not isinstance(items, list) and not getattr(items, "shape", ()):
            raise UsageError(f"collate returned {name!r} of type {type(items).__name__}; return an array or a list")
        if len(items) != count:
            raise UsageError(f"collate returned {name!r} of {len(items)} items; return {count}, one for each record")
    return dict(values)


def _by_group(groups: Any, output: OutputSpec) -> Any:
    """Return values by group name; without names the only group's, a single view without its list."""
    first = output.groups[0]
    if first.name:
        return {spec.name: values for spec, values in zip(output.groups, groups, strict=True)}
    return groups[0][0] if first.count == 1 else groups[0]


def _numeric(output: OutputSpec) -> Callable[[Array], Array]:
    """Make a function that gives arrays of 16 bits numpy's name for them, if it has one."""
    return lambda image: image.view(np.float16) if output.dtype == "float16" else image
