"""Buckets: batches of several sizes, each of images whose aspect ratios are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from picstore.arrays import F64, I64, U8, Bools, Table
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.transforms.arguments import checked_size

_MAX_BUCKETS = 256  # so that a record's bucket takes a byte
_CHUNK = 1 << 16  # images at a time, in the cache


class Buckets:
    """Sizes by aspect ratio, a loader's ``transform``: all images of a batch are of one bucket, and so of one size.

    A record belongs to the bucket whose aspect ratio is nearest to its own: of the ratios' logarithms, a tie to the
    wider. Nothing is read for this but the containers' indexes, when the loader is made.

    Args:
        sizes: (height, width) of each bucket's images, of several aspect ratios; given in any order.
        transform: a function of such a size that returns the bucket's list of transforms, or ``Views``.
        tokens: patches of a batch, in place of the loader's ``batch_size``: as many images as fit.
        patch: side of a patch in pixels.
        callables: ``MixUp``, ``CutMix`` and callables, for all batches; see :class:`picstore.Loader`.

    Raises:
        UsageError: sizes are missing, not positive or of the same aspect ratio, or one image has more than ``tokens``
            patches.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        transform: Callable[[tuple[int, int]], Any],
        *,
        tokens: int | None = None,
        patch: int = 16,
        callables: Sequence[Callable[..., Any]] = (),
    ) -> None:
        if not all(isinstance(size, (tuple, list)) and len(size) == 2 for size in sizes):
            raise UsageError(f"Buckets: sizes are {sizes!r}; give a list of (height, width)")
        checked = [checked_size(size, "Buckets") for size in sizes]
        self.sizes = tuple(sorted(checked, key=lambda size: size[1] / size[0]))
        if not 0 < len(self.sizes) <= _MAX_BUCKETS:
            raise UsageError(f"Buckets: there are {len(self.sizes)} sizes; give 1 to {_MAX_BUCKETS}")
        for one, other in zip(self.sizes, self.sizes[1:], strict=False):
            if one[1] * other[0] == other[1] * one[0]:
                raise UsageError(f"Buckets: {one} and {other} have the same aspect ratio; give one of them")
        if not callable(transform):
            raise UsageError(f"Buckets: transform is {transform!r}; give a function of a size")
        self.transform, self.callables = transform, tuple(callables)
        self.ratios = AspectRatios.of(self.sizes)
        self._tokens, self._patch = tokens, patch
        if tokens is not None:
            self._sizes_by_tokens(tokens)

    @classmethod
    def of_area(
        cls,
        area: int,
        transform: Callable[[tuple[int, int]], Any],
        *,
        multiple_of: int = 64,
        ratio: float = 2.0,
        **options: Any,
    ) -> Buckets:
        """Make the buckets that diffusion models are trained with: as large as possible within an area.

        Args:
            area: height times width at most, such as ``512 * 512``.
            transform: see :class:`Buckets`, as for the other options.
            multiple_of: both sides are multiples of it.
            ratio: of the longer side to the shorter, at most.

        Raises:
            UsageError: :class:`Buckets` raises it, or no multiple fits.
        """
        if not (isinstance(area, int) and isinstance(multiple_of, int) and area > 0 < multiple_of and ratio >= 1):
            raise UsageError(f"Buckets: area {area}, multiple_of {multiple_of}, ratio {ratio}; give positive numbers")
        sides = range(multiple_of, int((area * ratio) ** 0.5) + 1, multiple_of)
        fitting = [(side, area // side // multiple_of * multiple_of) for side in sides]
        within = [size for size in fitting if size[1] and max(size) <= ratio * min(size)]
        return cls([*{size for pair in within for size in (pair, pair[::-1])}], transform, **options)

    @property
    def choice(self) -> AspectRatios:
        """The rule by which images get a bucket's transforms."""
        return self.ratios

    def buckets_of(self, dataset: Dataset) -> U8:
        """The bucket of each record: uint8 (records,)."""
        return dataset.derive(self.ratios.assign_facts, np.uint8)

    def batch_sizes(self, batch_size: int | None) -> tuple[tuple[int, ...], ...]:
        """Images of a batch by bucket, of ``tokens`` or a loader's ``batch_size``; UsageError for both or neither."""
        if (batch_size is None) == (self._tokens is None):
            raise UsageError("Buckets: give the loader's batch_size, or Buckets' tokens")
        sizes = self._sizes_by_tokens(self._tokens) if batch_size is None else (batch_size,) * len(self.sizes)
        return tuple((size,) for size in sizes)

    def _sizes_by_tokens(self, tokens: int | None) -> tuple[int, ...]:
        if not isinstance(tokens, int) or not isinstance(self._patch, int) or self._patch < 1:
            raise UsageError(f"Buckets: tokens {tokens!r} and patch {self._patch!r}; give integers")
        counts = [(height // self._patch) * (width // self._patch) for height, width in self.sizes]
        for size, count in zip(self.sizes, counts, strict=True):
            if not 0 < count <= tokens:
                raise UsageError(
                    f"Buckets: an image of {size} has {count} patches; tokens is {tokens}; it must have 1 to tokens"
                )
        return tuple(tokens // count for count in counts)


@dataclass(frozen=True, slots=True)
class AspectRatios:
    """Aspect ratios of buckets, ascending, as the squares of the limits between each two.

    The limit between two ratios is their geometric mean. Its square is a quotient of integers, so that a record is in
    the same bucket on every machine.
    """

    limits: F64  # (buckets - 1,), squares of width over height

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]]) -> AspectRatios:
        """Make the limits from sizes (height, width), sorted by aspect ratio."""
        heights, widths = np.array(sizes, dtype=np.int64).T
        return cls((widths[:-1] * widths[1:]) / (heights[:-1] * heights[1:]))

    def assign(self, sizes: npt.NDArray[np.integer[Any]]) -> U8:
        """Find the buckets of images, given width and height (n, 2): uint8 (n,)."""
        found = np.empty(len(sizes), dtype=np.uint8)
        for start in range(0, len(sizes), _CHUNK):
            squares = np.maximum(sizes[start : start + _CHUNK], 1).astype(np.int64) ** 2  # of a damaged entry 1
            found[start : start + _CHUNK] = np.searchsorted(self.limits, squares[:, 0] / squares[:, 1], side="right")
        return found

    def assign_facts(self, facts: Table) -> U8:
        """Find the buckets of records, given ``record_facts.FACTS`` (n,)."""
        return self.assign(np.stack([facts["width"], facts["height"]], axis=1))

    def uses(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Mark the images of a bucket: a :class:`picstore.train.order.requests.PlanChoice`."""
        mine: Bools = self.assign(sizes) == plan
        return mine
