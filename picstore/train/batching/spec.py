"""A feed: all that it takes to turn requests into batches in CPU memory, in this process or in another.

It can be pickled, and so can what makes its requests: ``isolate`` runs the same feed in a process of its own. That
process needs no torch, and this one no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from picstore.errors import Damage, UsageError
from picstore.storage.edits.columns import Values
from picstore.train.batching.form import Form
from picstore.train.batching.parameters import Look
from picstore.train.order.epoch import Ints
from picstore.train.order.requests import Request, Source

Images: TypeAlias = "npt.NDArray[Any] | list[npt.NDArray[Any]]"  # (n, 3, H, W), or n of (3, H, W)
MakeRequests: TypeAlias = Callable[[Sequence[Source]], Iterator[Request]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pipeline may use: worker threads and bytes of containers."""

    threads: int
    budget: int

    def __post_init__(self) -> None:
        if self.threads < 1 or self.budget < 1:
            raise UsageError(f"threads {self.threads} and budget {self.budget}; both must be at least 1")


@dataclass(frozen=True, slots=True)
class Feed:
    """What batches are made of and how.

    Attributes:
        sources: the data sets.
        form: of the batches.
        limits: threads and bytes.
        strict: stop at the first damaged record instead of replacing it.
    """

    sources: tuple[Source, ...]
    form: Form
    limits: Limits
    strict: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Undecoded:
    """What a decoder on a device must know of a batch of streams, by slot.

    Attributes:
        bounds: int64 (n, 2), the first byte of each stream and the one behind its last; 0, 0 where there is none.
        places: int64 (n, 4), left, top, width and height of what it decodes to, in pixels of the stored image.
        look: what becomes of it.
        source: int64 (n,), number of the data set.
        files: file and offset of each record, "" where there is none.
        shown: int64 (n,), the slot whose image is shown: another one's where a record was lost.
    """

    bounds: Ints
    places: Ints
    look: Look
    source: Ints
    files: list[tuple[str, int]]
    shown: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A finished batch in CPU memory; the fields are those of ``Batch`` as arrays, and what was lost and replaced.

    Where the form leaves streams undecoded, ``images`` holds their bytes, uint8 (m,), and ``undecoded`` the rest.
    """

    images: Images
    labels: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    targets: list[dict[str, Any]] | None
    lost: list[Damage]
    undecoded: Undecoded | None = None
    columns: dict[str, Values] = field(default_factory=dict)

    @property
    def streams(self) -> Undecoded:
        """``undecoded`` where it is known to be there."""
        if self.undecoded is None:
            raise TypeError("this batch is decoded")
        return self.undecoded
