"""Specifications of a pipeline: OutputSpec, Resources and PipelineSpec.

They can be pickled: ``isolate`` runs the same pipeline in a process of its own. That process needs no torch, and this
one no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.order.requests import TrainingSource
from picstore.train.transforms.transform_plan import TransformPlan, common_dtype

MAX_PIXELS = 1 << 28  # of an image, as in ``picstore convert``
_MIN_BUDGET = 64 << 20  # bytes

# From a batch, see :func:`picstore.train.batching.collate.run_collate`, further values of its records by name.
Collate: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]

# numpy's dtype of the same size for each that images may have; it has no bfloat16.
_NUMPY_DTYPES = {"uint8": "uint8", "float16": "uint16", "bfloat16": "uint16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Views that a batch holds of each record: their name, "" for a list of transforms, and number."""

    name: str = ""
    count: int = 1
    stacked: bool = False  # whether all of a batch have one size, and are one array


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Groups, dtype and layout of the images of all batches."""

    groups: tuple[GroupSpec, ...] = (GroupSpec(),)
    dtype: str = "uint8"  # torch's name for it: uint8, float16, bfloat16 or float32
    channels_last: bool = False  # whether the three values of a pixel are neighbors in memory
    targets: tuple[str, ...] = ()  # names of what goes with the images
    reducing_gap: float | None = None  # of resampling, where images may be decoded smaller before it
    form: str = "pixels"  # or "streams", cut, or "segments", described, for a decoder on a device

    @classmethod
    def from_plans(
        cls, plans: Sequence[TransformPlan], *, dtype: str | None = None, channels_last: bool = False
    ) -> OutputSpec:
        """Make the output that plans share; UsageError for different views, an unknown dtype, or one size in some only.

        A batch is made by one plan, or by several that give images of one size, see :func:`check_one_size`.
        """
        given = [
            tuple(GroupSpec(group.name, group.count, group.size is not None) for group in plan.groups) for plan in plans
        ]
        views = {tuple((group.name, group.count) for group in groups) for groups in given}
        if len(views) > 1:
            raise UsageError(f"the lists of transforms give the views {sorted(views)}; all need the same")
        if len(set(given)) > 1:
            raise UsageError("lists of transform= fix the size of images, and others do not; end all with a size")
        normalized = any(plan.normalizes for plan in plans)
        if dtype is None:
            dtype = common_dtype([plan.dtype for plan in plans]) or ("float32" if normalized else "uint8")
        if dtype not in _NUMPY_DTYPES or (normalized and dtype == "uint8"):
            possible = "float16, bfloat16 or float32" + ("" if normalized else " or uint8")
            raise UsageError(f"dtype {dtype} is not possible{' after Normalize' if normalized else ''}; use {possible}")
        return cls(given[0], dtype, channels_last, plans[0].targets, plans[0].reducing_gap)

    @property
    def view_count(self) -> int:
        """Images that are made of each record."""
        return sum(group.count for group in self.groups)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """numpy's dtype that holds a value: ``dtype``, or uint16 for its 16 bits."""
        return np.dtype(_NUMPY_DTYPES[self.dtype])


def check_one_size(plans: Sequence[TransformPlan]) -> None:
    """Raise UsageError unless all plans give images of one size; their records share batches."""
    for groups in zip(*(plan.groups for plan in plans), strict=True):
        sizes = sorted({group.size or (0, 0) for group in groups})
        if len(sizes) > 1:
            found = f"images of sizes {sizes} (0 for any)"
            raise UsageError(f"the sources give {found}; end all lists with the same size")


@dataclass(frozen=True, slots=True)
class Resources:
    """Threads that decode, bytes of containers to hold, and largest pixels of an image; each at least 1."""

    threads: int
    budget: int
    max_pixels: int = MAX_PIXELS


def default_budget(datasets: Sequence[Dataset], lanes: int) -> int:
    """Bytes that ``lanes`` read at a time if each is in a container of the largest size, and a quarter more."""
    largest = max(int((ds.rows["size"] + ds.rows["referenced"]).max(initial=0)) for ds in datasets)
    return max(_MIN_BUDGET, 5 * lanes * largest // 4)


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """All that turns requests into batches."""

    sources: tuple[TrainingSource, ...]
    output: OutputSpec
    resources: Resources
    strict: bool = False  # stop at the first damaged record instead of replacing it
    collate: Collate | None = None
