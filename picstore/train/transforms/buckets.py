"""Buckets and Sequences: batches that differ in size, of images with similar aspect ratios or numbers of patches."""

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
from picstore.train.transforms.constructed import Value

_MAX_BUCKETS = 256  # maximum number of buckets, because a byte holds the index of a record's bucket
_CHUNK = 1 << 16  # number of images to sort into buckets at a time, so that their sizes fit into the CPU's cache


class Buckets(Value):
    """Loader ``transform`` that sorts records into buckets by aspect ratio; a batch has images of one bucket's size.

    A record belongs to the bucket with the nearest aspect ratio on a logarithmic scale; a tie goes to the wider bucket.
    To sort the records, a new loader reads the indexes of all containers, but no images.

    Args:
        sizes: 1 to 256 sizes (height, width) of images, of different aspect ratios; one for each bucket.
        transform: function that takes one of the sizes and returns the bucket's list of transforms, or ``Views``.
        tokens: maximum number of patches of a batch, instead of the loader's ``batch_size``.
        patch: side of a patch in pixels.
        callables: ``MixUp``, ``CutMix`` and callables, for all batches; see :class:`picstore.Loader`.
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
        self.ratios = self.choice = AspectRatios.of(self.sizes)
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
        """Return buckets for training diffusion models, with sizes as large as possible within an area.

        Args:
            area: maximum height times width, such as ``512 * 512``.
            transform, options: see :class:`Buckets`.
            multiple_of: number of pixels that divides both sides of each size.
            ratio: maximum ratio of the longer side to the shorter side.

        Raises:
            UsageError: an argument is invalid, or no size fits.
        """
        if not (isinstance(area, int) and isinstance(multiple_of, int) and area > 0 < multiple_of and ratio >= 1):
            raise UsageError(f"Buckets: area {area}, multiple_of {multiple_of}, ratio {ratio}; give positive numbers")
        sides = range(multiple_of, int((area * ratio) ** 0.5) + 1, multiple_of)
        fitting = [(side, area // side // multiple_of * multiple_of) for side in sides]
        within = [size for size in fitting if size[1] and max(size) <= ratio * min(size)]
        return cls([*{size for pair in within for size in (pair, pair[::-1])}], transform, **options)

    def buckets_of(self, dataset: Dataset) -> U8:
        """Return the index of the bucket of each record, chosen by its aspect ratio: uint8 (records,)."""
        return dataset.derive(self.ratios.assign_facts, np.uint8)

    def batch_sizes(self, batch_size: int | None) -> tuple[tuple[int, ...], ...]:
        """Return each bucket's batch size in images; raise UsageError unless either tokens or batch_size is given."""
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
    """Limits between the aspect ratios of neighboring buckets, ascending.

    A limit is the geometric mean of two aspect ratios. ``limits`` holds the square of each limit, because the square is
    a quotient of integers and so the same on every machine.
    """

    limits: F64  # (number of buckets − 1,), squares of the limits of width / height

    @classmethod
    def of(cls, sizes: Sequence[tuple[int, int]]) -> AspectRatios:
        """Return the limits between buckets, given the buckets' sizes (height, width) sorted by width / height."""
        heights, widths = np.array(sizes, dtype=np.int64).T
        return cls((widths[:-1] * widths[1:]) / (heights[:-1] * heights[1:]))

    def assign(self, sizes: npt.NDArray[np.integer[Any]]) -> U8:
        """Return the index of each image's bucket, uint8 (n,), given widths and heights, (n, 2)."""
        found = np.empty(len(sizes), dtype=np.uint8)
        for start in range(0, len(sizes), _CHUNK):
            # Replace sides of 0, which a damaged index entry may have, to avoid a division by 0.
            squares = np.maximum(sizes[start : start + _CHUNK], 1).astype(np.int64) ** 2
            found[start : start + _CHUNK] = np.searchsorted(self.limits, squares[:, 0] / squares[:, 1], side="right")
        return found

    def assign_facts(self, facts: Table) -> U8:
        """Return the index of each record's bucket, uint8 (n,), from the fields width and height of ``facts``, (n,)."""
        return self.assign(np.stack([facts["width"], facts["height"]], axis=1))

    def uses(self, plan: int, epoch: int, sizes: I64) -> Bools:
        """Return whether each image of ``sizes``, (n, 2), belongs to the bucket with index ``plan``: bool (n,)."""
        mine: Bools = self.assign(sizes) == plan
        return mine


_MAX_LENGTHS = 256


class Sequences(Value):
    """Loader ``transform`` that draws a sequence length, in patches, for each batch, as timm's NaFlex does.

    A batch has as many images as fit into ``tokens``. Each epoch has the same lengths in another order, and the same
    number of batches. At each step, all ranks have the same length. Images keep their aspect ratios and come as a list;
    ``picstore.patchify`` cuts them into padded patches.

    Args:
        lengths: 1 to 256 different lengths from 1 to ``tokens``, each the maximum number of patches of an image.
        transform: function that takes a length and returns a list of transforms, with a :class:`ResizeToSequence`.
        tokens: maximum number of patches of a batch, instead of the loader's ``batch_size``.
        callables: ``MixUp``, ``CutMix`` and callables, for all batches; see :class:`picstore.Loader`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        transform: Callable[[int], Sequence[Any]],
        *,
        tokens: int,
        callables: Sequence[Callable[..., Any]] = (),
    ) -> None:
        self.sizes = tuple(lengths)
        if not 0 < len(self.sizes) <= _MAX_LENGTHS or len(set(self.sizes)) < len(self.sizes):
            raise UsageError(f"Sequences: lengths are {lengths}; give 1 to {_MAX_LENGTHS}, each once")
        for length in self.sizes:
            if not isinstance(length, int) or not isinstance(tokens, int) or not 0 < length <= tokens:
                raise UsageError(f"Sequences: a length is {length!r} and tokens {tokens!r}; give 1 to tokens patches")
        if not callable(transform):
            raise UsageError(f"Sequences: transform is {transform!r}; give a function of a length")
        self.transform, self.tokens, self.callables = transform, tokens, tuple(callables)
        self.choice = None  # No rule chooses plans by size: an image of any size may get any length.

    def batch_sizes(self, batch_size: int | None) -> tuple[tuple[int, ...], ...]:
        """Return, for the only bucket, the batch size of each length; raise UsageError for any given ``batch_size``."""
        if batch_size is not None:
            raise UsageError(f"batch_size is {batch_size}; leave it out, as Sequences have tokens in its place")
        return (tuple(self.tokens // length for length in self.sizes),)

    def buckets_of(self, dataset: Dataset) -> U8:
        """Return the index of each record's bucket, always 0, because there is only one: uint8 (records,)."""
        return np.zeros(len(dataset), dtype=np.uint8)
