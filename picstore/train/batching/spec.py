"""Specifications of a pipeline: OutputSpec, Resources and PipelineSpec.

All can be pickled, because ``isolate`` runs the pipeline in a process of its own. That process needs no torch, and the
process of the training loop needs no kernels.
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

MAX_PIXELS = 1 << 28  # maximum number of pixels of an image, as in ``picstore convert``
_MIN_BUDGET = 64 << 20  # minimum default budget in bytes

# Function that computes further values, by name, from a batch; see ``columns_and_collate.run_collate``.
Collate: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]

# For each dtype of images, a NumPy dtype of the same size. NumPy has no bfloat16.
_NUMPY_DTYPES = {"uint8": "uint8", "float16": "uint16", "bfloat16": "uint16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Group of views that the same transforms make; a batch holds ``count`` such views of each record."""

    name: str = ""  # name of the group; empty if the loader's transforms are a list, not ``Views``
    count: int = 1
    stacked: bool = False  # whether the images have one size and lie in one array


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Specification of a loader's batches: groups, dtype and layout of the images, and names of targets."""

    groups: tuple[GroupSpec, ...] = (GroupSpec(),)
    dtype: str = "uint8"  # name of torch's dtype
    channels_last: bool = False  # whether a pixel's values are neighbors in memory
    targets: tuple[str, ...] = ()  # names of the images' annotations, such as boxes, that a batch holds
    reducing_gap: float | None = None  # the loader's option of that name; None to decode at full size
    form: str = "pixels"  # form of images in CPU memory, a key of ``batch_forms.FORMS``

    @classmethod
    def from_plans(
        cls, plans: Sequence[TransformPlan], *, dtype: str | None = None, channels_last: bool = False
    ) -> OutputSpec:
        """Return the specification of all batches of a loader, whose lists of transforms are ``plans``.

        The images of a batch may come from several plans only if all plans make images of the same size.

        Raises:
            UsageError: the plans' views differ, the dtype is unknown, or only some plans fix the size of images.
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
        """Number of images that are made from each record."""
        return sum(group.count for group in self.groups)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy dtype for images of ``dtype``: the same, except that uint16 holds the bits of 16-bit floats."""
        return np.dtype(_NUMPY_DTYPES[self.dtype])


def check_one_size(plans: Sequence[TransformPlan]) -> None:
    """Raise UsageError unless all plans make images of one size, because a batch may have images of several plans."""
    for groups in zip(*(plan.groups for plan in plans), strict=True):
        sizes = sorted({group.size or (0, 0) for group in groups})
        if len(sizes) > 1:
            found = f"images of sizes {sizes} (0 for any)"
            raise UsageError(f"the sources give {found}; end all lists with the same size")


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits, each at least 1: number of decoding threads, bytes of containers to hold, and pixels of an image."""

    threads: int
    budget: int
    max_pixels: int = MAX_PIXELS


def default_budget(datasets: Sequence[Dataset], lanes: int) -> int:
    """Return the default budget in bytes: 1.25 × ``lanes`` × the largest container's size, at least ``_MIN_BUDGET``."""
    largest = max(int((ds.rows["size"] + ds.rows["referenced"]).max(initial=0)) for ds in datasets)
    return max(_MIN_BUDGET, 5 * lanes * largest // 4)


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """Specification of a pipeline, which turns requests into batches.

    With ``strict``, a pipeline stops at the first damaged record instead of replacing it.
    """

    sources: tuple[TrainingSource, ...]
    output: OutputSpec
    resources: Resources
    strict: bool = False
    collate: Collate | None = None
