"""A feed: all that it takes to turn requests into batches in CPU memory, in this process or in another.

It can be pickled, and so can what makes its requests: ``isolate`` runs the same feed in a process of its own. That
process needs no torch, and this one no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import I64, Array
from picstore.errors import Damage, UsageError
from picstore.storage.edits.columns import Values
from picstore.train.batching.parameters import TransformParams
from picstore.train.order.requests import Request, Source
from picstore.train.transforms.compose import TransformPlan

Images: TypeAlias = "Array | list[Array]"  # (n, 3, H, W), or n of (3, H, W)
MakeRequests: TypeAlias = Callable[[Sequence[Source]], Iterator[Request]]

# numpy's dtype of the same size for each that images may have; it has no bfloat16.
_ITEMS: dict[str, Any] = {"uint8": np.uint8, "float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32}


@dataclass(frozen=True, slots=True)
class Resources:
    """What a pipeline may use: worker threads and bytes of containers."""

    threads: int
    budget: int

    def __post_init__(self) -> None:
        if self.threads < 1 or self.budget < 1:
            raise UsageError(f"threads {self.threads} and budget {self.budget}; both must be at least 1")


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What the images of all batches are.

    Attributes:
        size: (height, width) of all, None where they differ.
        dtype: torch's name for it: uint8, float16, bfloat16 or float32.
        channels_last: whether the three values of a pixel are neighbours in memory.
        targets: names of what goes with the images.
        decoded: False leaves them streams, cut, for a decoder on a device.
    """

    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    channels_last: bool = False
    targets: tuple[str, ...] = ()
    decoded: bool = True

    @classmethod
    def of(
        cls, recipes: Sequence[TransformPlan], *, dtype: str | None = None, channels_last: bool = False
    ) -> OutputSpec:
        """What the images of some sources become together.

        Raises:
            UsageError: they would be of several sizes, or cannot be of this dtype.
        """
        sizes = sorted({recipe.size or (0, 0) for recipe in recipes})
        if len(sizes) > 1:
            raise UsageError(f"the sources give images of sizes {sizes} (0 for any); end all lists with the same size")
        normalised = any(recipe.normalises for recipe in recipes)
        if dtype is None:
            dtype = "float32" if normalised else "uint8"
        if dtype not in _ITEMS or (normalised and dtype == "uint8"):
            possible = "float16, bfloat16 or float32" + ("" if normalised else " or uint8")
            raise UsageError(f"dtype {dtype} is not possible{' after Normalize' if normalised else ''}; use {possible}")
        targets = recipes[0].targets if recipes else ()
        return cls(recipes[0].size, dtype, channels_last, targets)

    @property
    def item(self) -> np.dtype[Any]:
        """numpy's dtype that holds a value: ``dtype``, or uint16 for its 16 bits."""
        item: np.dtype[Any] = np.dtype(_ITEMS[self.dtype])
        return item


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """What batches are made of and how.

    Attributes:
        sources: the data sets.
        form: of the batches.
        limits: threads and bytes.
        strict: stop at the first damaged record instead of replacing it.
    """

    sources: tuple[Source, ...]
    form: OutputSpec
    limits: Resources
    strict: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class EncodedBatch:
    """What a decoder on a device must know of a batch of streams, by slot.

    Attributes:
        bounds: int64 (n, 2), the first byte of each stream and the one behind its last; 0, 0 where there is none.
        places: int64 (n, 4), left, top, width and height of what it decodes to, in pixels of the stored image.
        look: what becomes of it.
        source: int64 (n,), number of the data set.
        files: file and offset of each record, "" where there is none.
        shown: int64 (n,), the slot whose image is shown: another one's where a record was lost.
    """

    bounds: I64
    places: I64
    look: TransformParams
    source: I64
    files: list[tuple[str, int]]
    shown: I64


@dataclass(frozen=True, slots=True, eq=False)
class HostBatch:
    """A finished batch in CPU memory; the fields are those of ``Batch`` as arrays, and what was lost and replaced.

    Where the form leaves streams undecoded, ``images`` holds their bytes, uint8 (m,), and ``undecoded`` the rest.
    """

    images: Images
    labels: I64
    ids: I64
    targets: list[dict[str, Any]] | None
    lost: list[Damage]
    undecoded: EncodedBatch | None = None
    columns: dict[str, Values] = field(default_factory=dict)

    @property
    def streams(self) -> EncodedBatch:
        """``undecoded`` where it is known to be there."""
        if self.undecoded is None:
            raise TypeError("this batch is decoded")
        return self.undecoded
