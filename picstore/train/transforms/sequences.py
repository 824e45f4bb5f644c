"""Sequences: batches of several numbers of patches, with as many images as a budget of tokens allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from picstore.arrays import U8
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset

_MAX_LENGTHS = 256


class Sequences:
    """Lengths of sequences of patches, a loader's ``transform``: one is drawn for each batch, as timm's NaFlex does.

    A batch has as many images as fit into ``tokens``. An epoch has the same lengths as any other, in another order, and
    so the same number of batches; all ranks have the same length at each step. Images keep their aspect ratio and are a
    list; ``picstore.patchify`` makes padded patches of them.

    Args:
        lengths: patches of an image, at most.
        transform: a function of a length that returns a list of transforms with :class:`ResizeToSequence`.
        tokens: patches of a batch, in place of the loader's ``batch_size``.
        callables: ``MixUp``, ``CutMix`` and callables, for all batches; see :class:`picstore.Loader`.

    Raises:
        UsageError: lengths are missing, not positive, given twice, or more than ``tokens``.
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
        self.choice = None  # any image may get any length

    def batch_sizes(self, batch_size: int | None) -> tuple[tuple[int, ...], ...]:
        """Images of a batch by length, in the one bucket that there is; UsageError for a ``batch_size``."""
        if batch_size is not None:
            raise UsageError(f"batch_size is {batch_size}; leave it out, as Sequences have tokens in its place")
        return (tuple(self.tokens // length for length in self.sizes),)

    def buckets_of(self, dataset: Dataset) -> U8:
        """The bucket of each record: uint8 (records,)."""
        return np.zeros(len(dataset), dtype=np.uint8)
