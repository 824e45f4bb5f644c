"""Sizes of some inputs, which tell a source from another one whose images have the same names."""

from __future__ import annotations

from collections.abc import Sequence

from picstore.errors import ImageError
from picstore.prepare.sources.inputs import Input, read_input

SAMPLES = 32


def sample_numbers(inputs: int) -> range:
    """Return the numbers of up to ``SAMPLES`` inputs, evenly spaced."""
    step = max(1, inputs // SAMPLES)
    return range(0, min(inputs, step * SAMPLES), step)


def sample_sizes(inputs: Sequence[Input]) -> list[int]:
    """Read the sampled inputs; returns their bytes, 0 for one that cannot be read."""
    return [_size(inputs[k]) for k in sample_numbers(len(inputs))]


def same_images(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Whether most samples that could be read both times kept their size; some may have been repaired."""
    pairs = [(size, other) for size, other in zip(sizes, others, strict=True) if size and other]
    return 2 * sum(size == other for size, other in pairs) >= len(pairs)


def _size(source: Input) -> int:
    try:
        return len(read_input(source))
    except ImageError:
        return 0
